package idempotency

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"log/slog"
	mathrand "math/rand/v2"
	"sync"
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
	asked = time.Now()
	if l.inProcess() {
		rec, err = l.store.Reserve(ctx, claim)
		return rec, asked, err
	}
	err = l.persist(ctx, func(ctx context.Context) error {
		asked = time.Now()
		rec, err = l.store.Reserve(ctx, claim)
		return err
	})
	if err == nil && (rec.State < Acquired || rec.State > Completed) {
		err = errors.New("idempotency: the store answered with no valid state")
	}
	if err != nil && !errors.Is(err, ErrStoreFull) {
		l.abandon(ctx, claim)
	}
	return rec, asked, err
}

// abandon frees what a failed reserve may have left: a statement that was cut off can
// still commit, and its claim would hold the key for an attempt that never ran. If it
// cannot, the claim lapses by itself. Nobody waits for it.
func (l *lifecycle) abandon(ctx context.Context, claim Claim) {
	ctx = context.WithoutCancel(ctx)
	l.running.enter()
	go func() {
		defer l.running.leave()
		_ = l.persist(ctx, func(ctx context.Context) error { return l.store.Release(ctx, claim) })
	}()
}

// inProcess reports whether the store does no I/O: it needs no timeout, and loses no
// reply.
func (l *lifecycle) inProcess() bool {
	_, memory := l.store.(*MemoryStore)
	return memory
}

// persist calls op until it succeeds, is refused for good, or StoreTimeout is over or
// ctx ends. One try gets half of the time at most, so that a connection which went
// silent leaves some for another one. The waits grow and are spread: a store that comes
// back must not be met by everybody at once.
func (l *lifecycle) persist(ctx context.Context, op func(context.Context) error) error {
	end := time.Now().Add(l.storeTimeout)
	for wait := 5 * time.Millisecond; ; wait = min(2*wait, 500*time.Millisecond) {
		try, cancel := context.WithTimeout(ctx, min(l.storeTimeout/2, time.Until(end)))
		err := op(try)
		cancel()
		if err == nil || errors.Is(err, ErrClaimLost) || errors.Is(err, ErrStoreFull) {
			return err
		}
		delay := wait/2 + mathrand.N(wait)
		if delay >= time.Until(end) || pause(ctx, delay) != nil {
			return err
		}
	}
}

// Attempt is one run of the handler, or of a consumer's function, under a key. Its
// methods are safe for concurrent use, work on nil, which is what an unprotected
// request has, and change nothing once the outcome is recorded.
type Attempt struct {
	life   *lifecycle
	claim  Claim
	number int
	ctx    runContext
	lease  leaseKeeper
	rec    *recorder // nil in a Consumer, where there is no response
	cfg    *Config   // with rec

	mu       sync.Mutex
	released bool
	ref      string
	inTx     bool
	final    verdict // not running: the outcome stands, nothing may change it
	finalErr error
}

// verdict is what became of an attempt.
type verdict int

const (
	undecided verdict = iota
	recorded          // completed, by an early record or in a transaction
	freed             // released, in a transaction
	lost              // the claim is not ours any more, or nobody knows
	uncertain         // a commit whose outcome could not be learned: the client must not be told a guess
)

// FromContext returns the attempt that ctx belongs to, or nil.
func FromContext(ctx context.Context) *Attempt {
	a, _ := ctx.Value(attemptKey).(*Attempt)
	return a
}

// Key returns the key that the attempt runs under.
func (a *Attempt) Key() Key {
	if a == nil {
		return Key{}
	}
	return a.claim.Key
}

// Number is 1 for a key's first run and one higher for each run after a crash
// ([Rerun]); 0 on nil.
func (a *Attempt) Number() int {
	if a == nil {
		return 0
	}
	return a.number
}

// Release says that nothing happened: the response is sent, nothing is recorded, and
// the key is free for a fresh run. For a request that was refused before anything was
// begun.
func (a *Attempt) Release() {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.released = true
}

// KeepRef records ref in the body's place, for a body that is large, or that must not
// be kept twice. A replay goes through [Config.Rebuild].
func (a *Attempt) KeepRef(ref string) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ref = ref
}

// Derive returns a UUID for a call downstream, to be sent as that call's own
// idempotency key: equal on every attempt of one key, so that a rerun repeats the call
// instead of making a second one; different for another name, value, endpoint or
// tenant. On nil, which has no key to derive from, it is a new random one.
func (a *Attempt) Derive(name string) string {
	if a == nil {
		return NewKey()
	}
	return a.claim.Key.Derive(name)
}

// Derive is [Attempt.Derive] for who has the key alone: a job that looks up what an
// interrupted attempt did.
func (k Key) Derive(name string) string {
	digest := k.digest()
	sum := sha256.Sum256(appendFramed(append([]byte("derive"), digest[:]...), name))
	id := uuid.UUID(sum[:16])
	id[6] = id[6]&0x0f | 0x80 // version 8: made by a rule of our own (RFC 9562)
	id[8] = id[8]&0x3f | 0x80 // the RFC's variant
	return id.String()
}

// begin starts a claim that was acquired: its context and the keeping of its lease.
// The caller must settle it.
func (a *Attempt) begin(l *lifecycle, claim Claim, rec Record, asked time.Time) {
	a.life, a.claim, a.number = l, claim, rec.Attempt
	a.keepLease(asked)
}

var (
	errNested  = errors.New("idempotency: InTx inside InTx")
	errDecided = errors.New("idempotency: InTx after the outcome was recorded")
)

// enterTx lets one transaction at a time decide what becomes of the attempt.
func (a *Attempt) enterTx() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.inTx:
		return errNested
	case a.final == lost:
		return ErrClaimLost
	case a.final != undecided, a.rec != nil && a.rec.started():
		return errDecided
	}
	a.inTx = true
	return nil
}

func (a *Attempt) leaveTx() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.inTx = false
}

// finish decides, for good, what became of the attempt: the first verdict stands.
func (a *Attempt) finish(v verdict, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.final == undecided {
		a.final, a.finalErr = v, err
	}
}

// write records the outcome, or without keep frees the key: fenced by the token, and on
// a context of its own, since the client's leaving must not undo what was done.
func (a *Attempt) write(resp Response, keep bool) error {
	store, claim := a.life.store, a.claim
	if a.life.inProcess() {
		ctx := context.Background()
		if keep {
			return store.Complete(ctx, claim, resp)
		}
		return store.Release(ctx, claim)
	}
	ctx := context.WithoutCancel(a.ctx.values)
	if keep {
		return a.life.persist(ctx, func(ctx context.Context) error { return store.Complete(ctx, claim, resp) })
	}
	tries := 0
	err := a.life.persist(ctx, func(ctx context.Context) error {
		tries++
		return store.Release(ctx, claim)
	})
	if tries > 1 && errors.Is(err, ErrClaimLost) {
		return nil // the try whose reply was lost had freed it
	}
	return err
}

func (a *Attempt) verdict() (verdict, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.final, a.finalErr
}

// outcome is what the record would say now, and whether it is kept at all.
func (a *Attempt) outcome() (resp Response, keep bool) {
	a.mu.Lock()
	released, ref := a.released, a.ref
	a.mu.Unlock()
	if a.rec == nil {
		return Response{}, !released
	}
	resp = a.rec.response()
	switch {
	case ref != "":
		resp.Ref, resp.Body, resp.Omitted = ref, nil, false
	case int64(len(resp.Body)) > a.cfg.MaxResponseBytes:
		resp.Body, resp.Omitted = nil, true
	}
	return resp, !released && a.cfg.keeps(resp.Status)
}

// recordEarly records a response that is too long to be kept back, so that it can be
// sent as it comes. If the store fails, the lease is kept on: another try is made when
// the handler is done, and until then nobody else may run.
func (a *Attempt) recordEarly() {
	resp, keep := a.outcome()
	if !keep {
		return
	}
	a.stopLease()
	if err := a.write(resp, true); err != nil {
		a.resumeLease()
		return
	}
	a.finish(recorded, nil)
}

// settle ends the attempt: it stops the lease and, unless the outcome stands already,
// records resp or frees the key. It is called once.
func (a *Attempt) settle(resp Response, keep bool) (Outcome, error) {
	a.stopLease()
	defer a.ctx.end(nil)

	final, err := a.verdict()
	if final == undecided {
		final = freed
		if keep {
			final = recorded
		}
		if err = a.write(resp, keep); err != nil {
			final = lost
		}
		a.finish(final, err)
	}
	switch final {
	case recorded:
		return Executed, nil
	case freed:
		return Released, nil
	default:
		a.life.log().Error("idempotency: the handler ran, its outcome is not recorded",
			"key_hash", a.claim.Key.hash(), "endpoint", a.claim.Key.Endpoint, "attempt", a.number, "error", err)
		return Unrecorded, err
	}
}
