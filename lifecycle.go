package idempotency

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	mathrand "math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
)

// lifecycle is how attempts are run against a store, whatever they run: the
// middleware's requests and the consumer's messages. An attempt goes through
//
//	reserve ──► running ──► settled: completed, released, or lost
//	              │  ▲
//	              └──┘ lease renewed
//
// and every step past the reserve is fenced by the attempt's token.
type lifecycle struct {
	store        Store
	lease        time.Duration
	ttl          time.Duration
	storeTimeout time.Duration
	rerun        bool
	logger       *slog.Logger // nil: slog.Default()

	running gate // attempts, and the store calls that outlive them
}

func (l *lifecycle) log() *slog.Logger {
	if l.logger != nil {
		return l.logger
	}
	return slog.Default()
}

func (l *lifecycle) claim(key Key, fp Fingerprint) Claim {
	return Claim{Key: key, Fingerprint: fp, Token: newToken(), Lease: l.lease, TTL: l.ttl, Rerun: l.rerun}
}

// newToken is uuid.New without its allocation: a replay needs a token too.
func newToken() (token uuid.UUID) {
	rand.Read(token[:]) // never fails
	token[6] = token[6]&0x0f | 0x40
	token[8] = token[8]&0x3f | 0x80
	return token
}

// reserve asks for the key, again with the same token if the store fails, so that a
// claim whose reply was lost is not taken for somebody else's. It also returns when the
// answered call was made, which the lease cannot have started before. After an error
// nothing may run.
func (l *lifecycle) reserve(ctx context.Context, claim Claim) (rec Record, asked time.Time, err error) {
	if memory, ok := l.store.(*MemoryStore); ok {
		if rec, err = memory.reservePacked(ctx, claim); rec.State == Acquired {
			asked = time.Now() // late, but this store answers every renewal: nobody reckons by it
		}
		return rec, asked, err
	}
	err = l.persist(ctx, isPermanent, func(ctx context.Context) error {
		asked = time.Now()
		rec, err = l.store.Reserve(ctx, claim)
		return err
	})
	if err == nil && (rec.State < Acquired || rec.State > Completed) {
		err = errors.New("idempotency: the store answered with no valid state")
	}
	if err != nil && !errors.Is(err, ErrStoreFull) && !asked.IsZero() { // zero: ctx had ended, nothing was asked
		l.abandon(ctx, claim)
	}
	return rec, asked, err
}

// abandon frees what a failed reserve may have left: a claim that would hold the key for
// an attempt that never ran. A statement that was cut off can still be executed behind a
// Release that found nothing, so the Release is repeated for a while, unless that cannot
// help. If all fails, the claim lapses by itself. Nobody waits for it.
func (l *lifecycle) abandon(ctx context.Context, claim Claim) {
	ctx = context.WithoutCancel(ctx)
	l.running.enter()
	go func() {
		defer l.running.leave()
		release := func(ctx context.Context) error { return l.store.Release(ctx, claim) }
		for wait := l.storeTimeout / 64; ; wait *= 4 {
			err := l.try(ctx, l.storeTimeout/2, release)
			if err == nil || isPermanent(err) || wait >= l.storeTimeout {
				return
			}
			_ = pause(ctx, wait)
		}
	}()
}

// inProcess reports whether the store does no I/O: it needs no timeout, and loses no
// reply.
func (l *lifecycle) inProcess() bool {
	_, memory := l.store.(*MemoryStore)
	return memory
}

// persist calls op until it succeeds, is refused for good, fails as hopeless has it, or
// StoreTimeout is over or ctx ends. One try gets half of the time at most, so that a
// connection which went silent leaves some for another one. The waits grow and are
// spread: a store that comes back must not be met by everybody at once.
func (l *lifecycle) persist(ctx context.Context, hopeless func(error) bool, op func(context.Context) error) error {
	end := time.Now().Add(l.storeTimeout)
	for wait := 5 * time.Millisecond; ; wait = min(2*wait, 500*time.Millisecond) {
		err := l.try(ctx, min(l.storeTimeout/2, time.Until(end)), op)
		if err == nil || errors.Is(err, ErrClaimLost) || errors.Is(err, ErrStoreFull) || hopeless(err) {
			return err
		}
		delay := wait/2 + mathrand.N(wait)
		if delay >= time.Until(end) || pause(ctx, delay) != nil {
			return err
		}
	}
}

// permanentError is the failure of a store that trying again does not mend: somebody has
// to change something first. A request of which nothing was run is told so at once.
type permanentError struct{ error }

func (e *permanentError) Unwrap() error { return e.error }

func isPermanent(err error) bool {
	var permanent *permanentError
	return errors.As(err, &permanent)
}

// neverHopeless is for an outcome: so much hangs on its record that whoever mends the
// store just now, say its password, should be waited for.
func neverHopeless(error) bool { return false }

// try calls op with a context that ends after the timeout or at ctx's deadline, but not
// when ctx is cancelled: a client that leaves would cut a statement off which is done
// in a moment, and leave a broken connection and a claim that nobody knows of.
func (l *lifecycle) try(ctx context.Context, timeout time.Duration, op func(context.Context) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	end := time.Now().Add(timeout)
	if deadline, ok := ctx.Deadline(); ok && deadline.Before(end) {
		end = deadline
	}
	ctx, cancel := context.WithDeadline(context.WithoutCancel(ctx), end)
	defer cancel()
	return op(ctx)
}

// gate counts what is running, so that Drain can wait for none.
type gate struct {
	n atomic.Int64

	mu   sync.Mutex
	idle chan struct{} // non-nil if somebody may wait; closed at 0
}

func (g *gate) enter() { g.n.Add(1) }

func (g *gate) leave() {
	if g.n.Add(-1) > 0 {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.idle != nil && g.n.Load() == 0 {
		close(g.idle)
		g.idle = nil
	}
}

func (g *gate) wait(ctx context.Context) error {
	g.mu.Lock()
	if g.idle == nil {
		g.idle = make(chan struct{}) // before n is read: the last one to leave looks for it after
	}
	idle := g.idle
	g.mu.Unlock()
	if g.n.Load() == 0 {
		return nil
	}
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
