package idempotency

import (
	"bytes"
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// Claims and outcomes that arrive while the database is busy share a statement, and so
// one commit: beyond some 16 callers that is several times as fast as one statement for
// each. With fewer callers each goes alone, at once; nothing waits for company.

const (
	// aloneWriters is how many statements are under way at most while there are few
	// callers: up to there PostgreSQL runs them side by side better than together.
	aloneWriters = 16
	// crowdWriters is how many there are in a crowd: one is filled and sent while the
	// other is committed, and each takes as many calls along as it can.
	crowdWriters = 2
	// groupMax bounds a statement.
	groupMax = 512
)

// group runs calls alone, or together when they queue. It has no goroutine while nobody
// queues.
type group[In, Out any] struct {
	alone    func(context.Context, In) (Out, error)
	together func(context.Context, []In) ([]Out, error)
	// keep makes what a call was given safe to use after its caller has left.
	keep func(In) In

	mu     sync.Mutex
	inside int // callers, whether queued or in a statement
	crowd  int // the average of inside over some 16 calls, times 16
	busy   int // statements under way
	queue  []*groupCall[In, Out]
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
	g.crowd += g.inside - g.crowd/16
	if len(g.queue) == 0 && g.busy < g.writers() {
		g.busy++
		return nil
	}
	call := &groupCall[In, Out]{ctx: ctx, in: g.keep(in), done: make(chan struct{})}
	g.queue = append(g.queue, call)
	return call
}

// writers is how many statements may be under way. It follows the average, because
// callers come in waves: those whose claims were made together complete them together.
func (g *group[In, Out]) writers() int {
	if g.crowd/16 > aloneWriters {
		return crowdWriters
	}
	return aloneWriters
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
	if len(g.queue) == 0 || g.busy >= g.writers() {
		return
	}
	n := min(len(g.queue), groupMax)
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

// ---- reserve

// insertion is what became of an INSERT: a time if it was made.
type insertion struct {
	createdAt time.Time
	inserted  bool
}

// insertTogether inserts the claims whose keys have no record. The rows go in the order
// of their keys: two statements that insert the same ones would otherwise wait for each
// other.
func (s *PostgresStore) insertTogether(ctx context.Context, claims []Claim) ([]insertion, error) {
	var (
		n                        = len(claims)
		ids, tokens              = make([]pgtype.UUID, n), make([]pgtype.UUID, n)
		tenants, endpoints, keys = make([]string, n), make([]string, n), make([]string, n)
		fingerprints             = make([][]byte, n)
		leases, ttls             = make([]int64, n), make([]int64, n)
	)
	for i, p := range orderedBy(claims, func(c Claim) [16]byte { return c.Key.id() }) {
		c := &claims[p.index]
		ids[i], tokens[i], fingerprints[i] = uuidOf(p.id), uuidOf(c.Token), c.Fingerprint[:]
		tenants[i], endpoints[i], keys[i] = c.Key.Tenant, c.Key.Endpoint, c.Key.Value
		leases[i], ttls[i] = micros(c.Lease), micros(c.TTL)
	}
	rows, err := s.db.Query(ctx, s.sql.insertTogether, ids, tenants, endpoints, keys, fingerprints, tokens, leases, ttls)
	if err != nil {
		return nil, err
	}
	made := make(map[[16]byte]time.Time, n)
	var token pgtype.UUID
	var createdAt time.Time
	if _, err = pgx.ForEachRow(rows, []any{&token, &createdAt}, func() error {
		made[token.Bytes] = createdAt
		return nil
	}); err != nil {
		return nil, err
	}
	out := make([]insertion, n)
	for i, c := range claims {
		out[i].createdAt, out[i].inserted = made[c.Token]
	}
	return out, nil
}

// ---- complete

func (o outcome) withOwnBody() outcome {
	o.body = bytes.Clone(o.body)
	return o
}

// completeTogether records the outcomes whose claims own their keys, and reports which.
func (s *PostgresStore) completeTogether(ctx context.Context, outcomes []outcome) ([]bool, error) {
	var (
		n             = len(outcomes)
		ids, tokens   = make([]pgtype.UUID, n), make([]pgtype.UUID, n)
		statuses      = make([]int32, n)
		headers, refs = make([][]byte, n), make([][]byte, n)
		bodies        = make([][]byte, n)
		omitted       = make([]bool, n)
		ttls          = make([]int64, n)
	)
	for i, p := range orderedBy(outcomes, func(o outcome) [16]byte { return o.claim.Key.id() }) {
		o := &outcomes[p.index]
		ids[i], tokens[i], ttls[i] = uuidOf(p.id), uuidOf(o.claim.Token), micros(o.claim.TTL)
		statuses[i], headers[i], bodies[i], refs[i], omitted[i] = o.status, o.header, o.body, o.ref, o.omitted
	}
	rows, err := s.db.Query(ctx, s.sql.completeTogether, ids, tokens, statuses, headers, bodies, refs, omitted, ttls)
	if err != nil {
		return nil, err
	}
	done := make(map[[16]byte]bool, n)
	var token pgtype.UUID
	if _, err = pgx.ForEachRow(rows, []any{&token}, func() error {
		done[token.Bytes] = true
		return nil
	}); err != nil {
		return nil, err
	}
	out := make([]bool, n)
	for i, o := range outcomes {
		out[i] = done[o.claim.Token]
	}
	return out, nil
}

// place is where a call's row is, in the order of the primary keys.
type place struct {
	id    [16]byte
	index int
}

func orderedBy[T any](calls []T, id func(T) [16]byte) []place {
	order := make([]place, len(calls))
	for i, call := range calls {
		order[i] = place{id(call), i}
	}
	slices.SortFunc(order, func(a, b place) int {
		return cmp.Or(bytes.Compare(a.id[:], b.id[:]), cmp.Compare(a.index, b.index))
	})
	return order
}
