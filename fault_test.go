package idempotency_test

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/seed-2d1e5f61/idempotency"
)

var errDown = errors.New("connection refused by 10.0.0.7")

// fault is what happens to a call of a store instead of the call alone. do makes the
// call take effect.
type fault func(ctx context.Context, do func() error) error

// The ways in which a call to a distant store ends.
var (
	works fault = func(_ context.Context, do func() error) error { return do() }
	// down fails before the call takes effect.
	down fault = func(context.Context, func() error) error { return errDown }
	// replyLost fails after the call took effect.
	replyLost fault = func(_ context.Context, do func() error) error { _ = do(); return errDown }
	// silent takes no effect and says nothing until the caller gives up.
	silent fault = func(ctx context.Context, _ func() error) error { <-ctx.Done(); return ctx.Err() }
	// replySilent takes effect and says nothing until the caller gives up.
	replySilent fault = func(ctx context.Context, do func() error) error { _ = do(); <-ctx.Done(); return ctx.Err() }
	// takenOver is a call that meets the fence.
	takenOver fault = func(context.Context, func() error) error { return idempotency.ErrClaimLost }
)

// storeCall is a call that a faultStore has seen.
type storeCall struct {
	op    string
	claim idempotency.Claim
	ctx   context.Context
}

// faultStore is a MemoryStore at a distance: it has no Await, and its calls fail as
// scripted.
type faultStore struct {
	mem *idempotency.MemoryStore

	mu     sync.Mutex
	script map[string][]fault // of each method, the next calls' faults; the last one stays
	calls  []storeCall
}

// newFaultStore returns a store whose method op fails by faults, one after the other;
// the last one stays.
func newFaultStore(op string, faults ...fault) *faultStore {
	s := &faultStore{mem: &idempotency.MemoryStore{}}
	return s.on(op, faults...)
}

// on scripts one more method.
func (s *faultStore) on(op string, faults ...fault) *faultStore {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.script == nil {
		s.script = make(map[string][]fault)
	}
	s.script[op] = faults
	return s
}

func (s *faultStore) call(ctx context.Context, op string, c idempotency.Claim, do func() error) error {
	s.mu.Lock()
	s.calls = append(s.calls, storeCall{op, c, ctx})
	next := works
	if script := s.script[op]; len(script) > 0 {
		next = script[0]
		if len(script) > 1 {
			s.script[op] = script[1:]
		}
	}
	s.mu.Unlock()
	return next(ctx, do)
}

// called returns the calls of the methods ops; of all methods if there are none.
func (s *faultStore) called(ops ...string) []storeCall {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.calls), func(c storeCall) bool {
		return len(ops) > 0 && !slices.Contains(ops, c.op)
	})
}

// The context of a call that takes effect late may be over by then: a statement that
// was sent is not called back.
func (s *faultStore) Reserve(ctx context.Context, c idempotency.Claim) (rec idempotency.Record, err error) {
	err = s.call(ctx, "Reserve", c, func() (err error) {
		rec, err = s.mem.Reserve(context.WithoutCancel(ctx), c)
		return err
	})
	if err != nil {
		return idempotency.Record{}, err
	}
	return rec, nil
}

func (s *faultStore) Extend(ctx context.Context, c idempotency.Claim) error {
	return s.call(ctx, "Extend", c, func() error { return s.mem.Extend(context.WithoutCancel(ctx), c) })
}

func (s *faultStore) Complete(ctx context.Context, c idempotency.Claim, resp idempotency.Response) error {
	return s.call(ctx, "Complete", c, func() error { return s.mem.Complete(context.WithoutCancel(ctx), c, resp) })
}

func (s *faultStore) Release(ctx context.Context, c idempotency.Claim) error {
	return s.call(ctx, "Release", c, func() error { return s.mem.Release(context.WithoutCancel(ctx), c) })
}
