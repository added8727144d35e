package idempotency

import (
	"context"
	"crypto/sha256"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/google/uuid"
)

// Attempt is one run of the handler, or of a consumer's function, under a key. Its
// methods are safe for concurrent use, work on nil, which is what an unprotected
// request has, and change nothing once the outcome is recorded.
type Attempt struct {
	life   *lifecycle
	claim  Claim
	number int
	ctx    runContext
	lease  leaseKeeper
	rec    *recorder     // nil in a Consumer, where there is no response
	cfg    *Config       // with rec
	asked  *http.Request // with rec: what the middleware was asked

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

// Key returns the key that the attempt runs under; the zero Key on nil.
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
// be kept twice. A replay goes through [Config.Rebuild]. The last call counts; with "" the
// body is recorded after all.
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

// runs reports whether a is still running for the same operation as r, under key: then a
// second middleware has been put behind the one that made a. A handler may send a request
// of its own on its context, even under its own key if the endpoint leaves the path out.
// That is another operation, and the store's to answer.
func (a *Attempt) runs(key Key, r *http.Request) bool {
	if a == nil || a.asked == nil || a.claim.Key != key {
		return false
	}
	final, _ := a.verdict()
	return final == undecided && a.asked.Method == r.Method && a.asked.URL.EscapedPath() == r.URL.EscapedPath()
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
	case a.final != undecided:
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
	resp = resp.forStore(store)
	if a.life.inProcess() {
		ctx := context.Background()
		if keep {
			return store.Complete(ctx, claim, resp)
		}
		return store.Release(ctx, claim)
	}
	ctx := context.WithoutCancel(a.ctx.values)
	if keep {
		return a.life.persist(ctx, neverHopeless, func(ctx context.Context) error { return store.Complete(ctx, claim, resp) })
	}
	tries := 0
	err := a.life.persist(ctx, neverHopeless, func(ctx context.Context) error {
		tries++
		return store.Release(ctx, claim)
	})
	if tries > 1 && errors.Is(err, ErrClaimLost) {
		return nil // the try whose reply was lost had freed it
	}
	return err
}

// log names the attempt in each line, and its key by a digest only.
func (a *Attempt) log() *slog.Logger {
	return a.life.log().With("key_hash", a.claim.Key.hash(), "endpoint", a.claim.Key.Endpoint, "attempt", a.number)
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
	if final, _ := a.verdict(); !keep || final != undecided { // decided: the claim is lost
		return
	}
	a.pauseLease()
	if err := a.write(resp, true); err != nil {
		a.resumeLease()
		return
	}
	a.finish(recorded, nil)
}

// recordedEarly reports whether an early record was written after all, though its reply was
// lost: then it, and nobody else, is why the claim is not ours any more.
func (a *Attempt) recordedEarly() bool {
	if a.rec == nil || !a.rec.started() {
		return false
	}
	resp, keep := a.outcome()
	if !keep || a.write(resp, true) != nil {
		return false
	}
	a.finish(recorded, nil)
	return true
}

// end makes sure that nothing of an attempt goes on which is over, settled or not.
func (a *Attempt) end() {
	a.stopLease()
	a.ctx.end(nil)
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
		a.log().Error("idempotency: the handler ran, its outcome is not recorded", "error", err)
		return Unrecorded, err
	}
}
