package idempotency

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// leaseKeeper renews a running claim's lease. A timer does it, which a fast handler
// stops before it fires: the ordinary request costs no goroutine.
type leaseKeeper struct {
	mu      sync.Mutex
	timer   *time.Timer
	liveTo  time.Time // the store keeps the lease at least so long
	failure error     // of the last renewal; nil if it was answered
	stopped bool
	ended   bool // stopped for good
}

func (a *Attempt) keepLease(asked time.Time) {
	k := &a.lease
	k.mu.Lock()
	defer k.mu.Unlock()
	k.liveTo = asked.Add(a.claim.Lease)
	k.timer = time.AfterFunc(a.claim.Lease/3, a.renewLease)
}

// pauseLease stops renewing until resumeLease.
func (a *Attempt) pauseLease() {
	k := &a.lease
	k.mu.Lock()
	defer k.mu.Unlock()
	k.stopped = true
	k.timer.Stop()
}

// stopLease stops renewing for good: a goroutine that the handler left behind may still
// pause and resume.
func (a *Attempt) stopLease() {
	k := &a.lease
	k.mu.Lock()
	defer k.mu.Unlock()
	k.stopped, k.ended = true, true
	k.timer.Stop()
}

// resumeLease goes on where pauseLease stopped, with a renewal at once.
func (a *Attempt) resumeLease() {
	k := &a.lease
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.ended {
		k.stopped = false
		k.timer.Reset(0)
	}
}

// renewLease runs in the timer's goroutine. A renewal that gets no answer is tried
// again until the lease is over by the store's clock, which runs no slower than from
// when the last answered call was asked; then, or as soon as the store says so, the
// claim is lost.
func (a *Attempt) renewLease() {
	k := &a.lease
	k.mu.Lock()
	liveTo, failure, stopped := k.liveTo, k.failure, k.stopped
	if !stopped {
		a.life.running.enter()
	}
	k.mu.Unlock()
	if stopped {
		return
	}
	defer a.life.running.leave()

	asked := time.Now()
	left := liveTo.Sub(asked)
	if left <= 0 && failure != nil {
		a.lose(fmt.Errorf("%w: lease could not be renewed: %w", ErrClaimLost, failure))
		return
	}
	// A process that was stopped past its lease finds none left, yet may still be the
	// owner: it asks once.
	patience := a.claim.Lease / 3
	if left > 0 {
		patience = min(patience, left)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(a.ctx.values), patience)
	defer cancel()
	a.renewed(asked, a.life.store.Extend(ctx, a.claim))
}

// renewed goes by what a renewal came to, which was asked for at asked.
func (a *Attempt) renewed(asked time.Time, err error) {
	lostClaim := errors.Is(err, ErrClaimLost)
	k := &a.lease
	k.mu.Lock()
	if k.stopped {
		k.mu.Unlock()
		return
	}
	first := k.failure == nil
	next := a.claim.Lease / 3
	if k.failure = err; err != nil {
		next = max(0, min(a.claim.Lease/12, time.Until(k.liveTo)))
	} else {
		k.liveTo = asked.Add(a.claim.Lease)
	}
	if !lostClaim {
		k.timer.Reset(next)
	}
	k.mu.Unlock()
	switch {
	case lostClaim && !a.recordedEarly():
		a.lose(err)
	case !lostClaim && err != nil && first: // of a series, which it speaks for
		a.log().Warn("idempotency: lease not renewed, will be tried again", "error", err)
	}
}

// lose ends the handler's context with cause, which matches ErrClaimLost: what it does
// from here on is not recorded, because another attempt may be running, or will be.
func (a *Attempt) lose(cause error) {
	a.finish(lost, cause)
	a.ctx.end(cause)
	a.log().Warn("idempotency: claim lost while the handler runs", "error", cause)
}

// runContext is the context of a running attempt: it ends when the attempt does, at
// HandlerTimeout or with its claim, and takes its values from the caller's context.
type runContext struct {
	values  context.Context
	attempt *Attempt

	mu     sync.Mutex
	inner  context.Context // ends when the attempt does; nil until somebody asks for it
	cancel context.CancelCauseFunc
	ended  bool
	cause  error // with ended
}

// detach makes c a context that keeps the values of parent, not its end. Unless there is
// a timeout, the rest is made for who asks: most handlers never do.
func (c *runContext) detach(parent context.Context, a *Attempt, timeout time.Duration) {
	c.values, c.attempt = parent, a
	if timeout > 0 {
		inner, cancel := context.WithCancelCause(context.Background())
		inner, stop := context.WithTimeout(inner, timeout)
		c.inner, c.cancel = inner, func(cause error) { cancel(cause); stop() }
	}
}

// attach makes c a child of parent that ends early if the claim is lost.
func (c *runContext) attach(parent context.Context, a *Attempt) {
	c.inner, c.cancel = context.WithCancelCause(parent)
	c.values, c.attempt = parent, a
}

// ending is the context that decides when c ends. It is one of package context's own, so
// that a child of c is cancelled through it, and needs no goroutine.
func (c *runContext) ending() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inner == nil {
		c.inner, c.cancel = context.WithCancelCause(context.Background())
		if c.ended {
			c.cancel(c.cause)
		}
	}
	return c.inner
}

// end ends the context with cause; nil is context.Canceled. The first cause stands.
func (c *runContext) end(cause error) {
	c.mu.Lock()
	if !c.ended {
		c.ended, c.cause = true, cause
	}
	cancel, cause := c.cancel, c.cause
	c.mu.Unlock()
	if cancel != nil {
		cancel(cause)
	}
}

func (c *runContext) Deadline() (time.Time, bool) { return c.ending().Deadline() }
func (c *runContext) Done() <-chan struct{}       { return c.ending().Done() }
func (c *runContext) Err() error                  { return c.ending().Err() }

func (c *runContext) Value(key any) any {
	if key == attemptKey {
		return c.attempt
	}
	// First our own end's values: package context looks there for what a child must be
	// cancelled by, and for the cause, and must not find the parent's.
	if v := c.ending().Value(key); v != nil {
		return v
	}
	return c.values.Value(key)
}
