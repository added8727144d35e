package idempotency

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Calls that arrive while the database is busy share a statement, and claims and outcomes
// so share one commit: in a crowd that is several times as fast as one statement for each.
// With fewer callers each goes alone, at once; nothing waits for company.

// limits say when calls share.
type limits struct {
	// few is how many statements are under way at most while there are not more callers
	// on average: up to there PostgreSQL runs them side by side better than together.
	few int
	// crowd is how many there are when there are more: each takes along as many calls
	// as it can.
	crowd int
	// calls bounds a statement.
	calls int
}

// group runs calls alone, or together when they queue. It has no goroutine while nobody
// queues.
type group[In, Out any] struct {
	limits
	alone    func(context.Context, In) (Out, error)
	together func(context.Context, []In) ([]Out, error)
	// keep makes what a call was given safe to use after its caller has left.
	keep func(In) In

	mu      sync.Mutex
	inside  int // callers, whether queued or in a statement
	average int // of inside over some 16 calls, times 16
	busy    int // statements under way
	queue   []*groupCall[In, Out]
}

type groupCall[In, Out any] struct {
	ctx  context.Context
	in   In
	out  Out
	err  error
	done chan struct{}
}

// do runs one call. If ctx ends while the call is in a shared statement, do returns, and
// whether the call took effect is not known, as with a statement of its own.
func (g *group[In, Out]) do(ctx context.Context, in In) (out Out, err error) {
	call := g.enter(ctx, in)
	defer g.leave()
	if call == nil {
		defer g.finish()
		return g.alone(ctx, in)
	}
	select {
	case <-call.done:
	case <-ctx.Done():
		return out, ctx.Err()
	}
	if call.err != nil {
		// Perhaps for another call's sake: by itself this one gets its own answer.
		return g.alone(ctx, in)
	}
	return call.out, nil
}

// enter returns nil if the caller may go alone, or its place in the queue. Nobody goes
// past others who queue.
func (g *group[In, Out]) enter(ctx context.Context, in In) *groupCall[In, Out] {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inside++
	g.average += g.inside - g.average/16
	if len(g.queue) == 0 && g.busy < g.statements() {
		g.busy++
		return nil
	}
	call := &groupCall[In, Out]{ctx: ctx, in: g.keep(in), done: make(chan struct{})}
	g.queue = append(g.queue, call)
	return call
}

// statements is how many statements may be under way. It follows the average, because
// callers come in waves: those whose claims were made together complete them together.
func (g *group[In, Out]) statements() int {
	if g.average/16 > g.few {
		return g.crowd
	}
	return g.few
}

func (g *group[In, Out]) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inside--
}

// finish ends a statement. Who queues goes next, together. There is always a statement
// under way while somebody queues, so nobody is forgotten.
func (g *group[In, Out]) finish() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.busy--
	if len(g.queue) == 0 || g.busy >= g.statements() {
		return
	}
	n := min(len(g.queue), g.calls)
	calls := g.queue[:n:n]
	if g.queue = g.queue[n:]; len(g.queue) == 0 {
		g.queue = nil // or its array would keep what the calls were given, bodies too
	}
	g.busy++
	go g.run(calls)
}

// run runs calls in one statement. Its context is none of theirs, since one caller's
// leaving must not end it for the others; it ends with the last one's deadline.
func (g *group[In, Out]) run(calls []*groupCall[In, Out]) {
	defer g.finish()
	calls = slices.DeleteFunc(calls, func(c *groupCall[In, Out]) bool { return c.ctx.Err() != nil })
	if len(calls) == 0 {
		return
	}
	ctx, cancel := sharedContext(calls)
	defer cancel()
	in := make([]In, len(calls))
	for i, call := range calls {
		in[i] = call.in
	}
	out, err := g.together(ctx, in)
	for i, call := range calls {
		if call.err = err; err == nil {
			call.out = out[i]
		}
		close(call.done)
	}
}

func sharedContext[In, Out any](calls []*groupCall[In, Out]) (context.Context, context.CancelFunc) {
	ctx := context.WithoutCancel(calls[0].ctx) // values: a tracer sees the statement in one of its requests
	var last time.Time
	for _, call := range calls {
		deadline, ok := call.ctx.Deadline()
		if !ok {
			return ctx, func() {}
		}
		if deadline.After(last) {
			last = deadline
		}
	}
	return context.WithDeadline(ctx, last)
}

// asItIs is for what nobody changes.
func asItIs[In any](in In) In { return in }
