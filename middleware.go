package idempotency

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/seed-2d1e5f61/idempotency/internal/keysyntax"
)

// Middleware makes handlers safe to retry. It is safe for concurrent use; make one
// with [New] for all handlers that share a configuration.
type Middleware struct {
	cfg  Config
	life lifecycle
}

// New returns a middleware over store, or every problem of its arguments at once,
// joined. It starts no goroutine and does no I/O.
func New(store Store, cfg Config) (*Middleware, error) {
	cfg = cfg.withDefaults()
	errs := cfg.check()
	if flaw := storeFlaw(store); flaw != "" {
		errs = append(errs, errors.New("idempotency: New: store "+flaw))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	cfg.Header = http.CanonicalHeaderKey(cfg.Header)
	cfg.ReplayedHeader = http.CanonicalHeaderKey(cfg.ReplayedHeader)
	cfg.Methods = slices.Clone(cfg.Methods)
	names := make([]string, 0, len(cfg.ReplayHeaders))
	for _, name := range cfg.ReplayHeaders {
		names = append(names, http.CanonicalHeaderKey(name))
	}
	cfg.ReplayHeaders = names
	return &Middleware{cfg: cfg, life: lifecycle{
		store:        store,
		lease:        cfg.Lease,
		ttl:          cfg.TTL,
		storeTimeout: cfg.StoreTimeout,
		rerun:        cfg.AfterCrash == Rerun,
		logger:       cfg.Logger,
	}}, nil
}

// Handler wraps next. As a method value it is a func(http.Handler) http.Handler and
// fits any router. Layers that authenticate belong outside of it; what must be equal
// on a replay belongs inside. Trailers of a response are neither sent nor recorded.
//
// Wrap a handler once. Behind two middlewares, or the same one twice, which both give a
// request the same key, it never runs: the answer is 500, and nothing is recorded. (It is
// 422, and recorded, if a layer between them rewrites the path and Config.Endpoint does
// not show it.) A nil next panics at once, as in net/http.
func (m *Middleware) Handler(next http.Handler) http.Handler {
	if f, ok := next.(http.HandlerFunc); next == nil || ok && f == nil {
		panic("idempotency: Middleware.Handler: handler is nil")
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !slices.Contains(m.cfg.Methods, r.Method) {
			next.ServeHTTP(w, r)
			return
		}
		x := exchange{m: m, w: w, r: r, next: next}
		if m.cfg.Observe != nil {
			x.arrived = time.Now()
		}
		x.serve()
		x.recycle()
	})
}

// Drain waits until m is at work on no request: none is about to run its handler, runs
// it, or has left something to be recorded or observed. It gives up when ctx ends, and
// returns its error. Call it after [http.Server.Shutdown], which does not wait for an
// HTTP/2 handler whose client has left, and before closing the store's database.
func (m *Middleware) Drain(ctx context.Context) error { return m.life.running.wait(ctx) }

// exchange is one request on its way through the stages.
type exchange struct {
	m       *Middleware
	w       http.ResponseWriter
	r       *http.Request
	next    http.Handler
	arrived time.Time // if somebody observes

	key   Key
	body  *bytes.Buffer // nil until it has been read
	claim Claim
}

// serve takes a request through the five stages. Each early return has its answer:
// nothing is guessed, and without a claim nothing runs.
func (x *exchange) serve() {
	// Drain waits from before the reserve until the outcome is observed: a request whose
	// client has left is in nobody else's sight.
	x.m.life.running.enter()
	defer x.m.life.running.leave()

	// 0. Check, before the body is read and before the store is touched.
	if err := x.check(); err != nil {
		x.refuse(Rejected, err)
		return
	}
	if x.key.Value == "" {
		x.runUnprotected(nil)
		return
	}
	if err := x.read(); err != nil {
		x.refuse(Rejected, err)
		return
	}
	if err := x.r.Context().Err(); err != nil {
		// The client is gone before anything was begun, so nothing is.
		x.answer(Rejected, Record{}, unavailableError(err))
		return
	}

	// 1. Reserve: one atomic statement decides who runs.
	rec, asked, err := x.m.life.reserve(x.r.Context(), x.claim)
	if err != nil {
		x.unavailable(err, x.m.cfg.FailOpen)
		return
	}
	if rec.State == InFlight && rec.Fingerprint == x.claim.Fingerprint && x.m.cfg.Wait > 0 {
		if rec, asked, err = x.wait(rec); err != nil {
			// A handler is running under this key: not even FailOpen may run another.
			x.unavailable(err, false)
			return
		}
	}

	// 2. Run, 3. record, 4. send.
	if rec.State == Acquired {
		x.run(rec, asked)
		return
	}

	// 5. Answer a retry. The fingerprint comes first, in every state: a key never
	// answers for a different request, nor tells what became of one.
	switch {
	case rec.Fingerprint != x.claim.Fingerprint:
		x.answer(Mismatch, rec, &requestError{sentinel: ErrKeyReused})
	case rec.State == Completed:
		x.replay(rec)
	case rec.State == InFlight:
		x.answer(Conflict, rec, &requestError{sentinel: ErrKeyInFlight, retryAfter: retrySeconds(rec.LeaseLeft)})
	default:
		x.answer(OutcomeUnknown, rec, &requestError{sentinel: ErrOutcomeUnknown})
	}
}

// check finds out whose key it is, for which operation. Without a key, and none
// required, x.key.Value stays empty.
func (x *exchange) check() *requestError {
	tenant, err := x.m.cfg.Tenant(x.r)
	if err != nil || tenant == "" {
		return &requestError{sentinel: ErrTenantUnknown, cause: err}
	}
	value, failure := x.clientKey()
	if x.m.cfg.Endpoint != nil {
		x.key = Key{tenant, x.m.cfg.Endpoint(x.r), value}
	} else {
		// One string for all, since the endpoint has to be put together anyway: the store
		// need not copy what is compact.
		whole := tenant + x.r.Method + " " + x.r.URL.EscapedPath() + value
		end := len(whole) - len(value)
		x.key = Key{whole[:len(tenant)], whole[len(tenant):end], whole[end:]}
	}
	if !storable(tenant) {
		return &requestError{sentinel: errMisuse, cause: errors.New("the tenant has NUL or invalid UTF-8")}
	}
	if !storable(x.key.Endpoint) {
		return &requestError{sentinel: errMisuse, cause: errors.New("the endpoint has NUL or invalid UTF-8")}
	}
	if failure != nil {
		return failure
	}
	if outer := FromContext(x.r.Context()); outer.runs(x.key, x.r) {
		// The key is the outer one's: the store would call it in flight, and the outer
		// one would record that as the outcome. Nothing has happened yet.
		outer.Release()
		return &requestError{sentinel: errMisuse, cause: errWrappedTwice}
	}
	return nil
}

var errWrappedTwice = errors.New("the handler is wrapped twice: this request's key is held by an outer Middleware.Handler")

// clientKey returns the key that the client sent, or "" if it sent none and need not.
func (x *exchange) clientKey() (string, *requestError) {
	lines := x.r.Header[x.m.cfg.Header]
	switch {
	case len(lines) == 0 && x.m.cfg.KeyOptional:
		return "", nil
	case len(lines) == 0:
		return "", &requestError{sentinel: ErrKeyMissing}
	case len(lines) > 1:
		// Two equal ones too: what merged them may have merged two requests.
		return "", x.invalidKey(errors.New("more than one line"))
	}
	value, err := keysyntax.Parse(lines[0], x.m.cfg.StrictKey)
	if err != nil {
		return "", x.invalidKey(err)
	}
	if x.m.cfg.CheckKey != nil {
		if err := x.m.cfg.CheckKey(value); err != nil {
			failure := x.invalidKey(err)
			failure.secret = true
			return "", failure
		}
	}
	return value, nil
}

func (x *exchange) invalidKey(cause error) *requestError {
	failure := &requestError{sentinel: ErrKeyInvalid, cause: cause}
	if x.m.cfg.StrictKey {
		failure.detail = strictKeyDetail
	}
	return failure
}

// storable reports whether a text column can hold s.
func storable(s string) bool {
	for i := range len(s) {
		if s[i] == 0 {
			return false
		}
		if s[i] >= utf8.RuneSelf {
			return utf8.ValidString(s[i:]) && strings.IndexByte(s[i:], 0) < 0
		}
	}
	return true
}

// read takes the body in, and with it the fingerprint and the claim.
func (x *exchange) read() *requestError {
	var buf *bytes.Buffer
	if x.m.cfg.Fingerprint == nil {
		buf = buffers.Get().(*bytes.Buffer)
	} else {
		buf = new(bytes.Buffer)
	}
	if failure := readBody(x.r, x.m.cfg.MaxRequestBytes, buf); failure != nil {
		return failure
	}
	x.body = buf
	fp, err := x.fingerprint(buf.Bytes())
	if err != nil {
		return &requestError{sentinel: errMisuse, cause: fmt.Errorf("Config.Fingerprint: %w", err)}
	}
	x.claim = x.m.life.claim(x.key, fp)
	x.claim.compact = x.m.cfg.Endpoint == nil
	return nil
}

func (x *exchange) fingerprint(body []byte) (Fingerprint, error) {
	var space [128]byte // stays on the stack, which what FingerprintBody returns cannot
	payload := space[:0]
	if x.m.cfg.Fingerprint == nil {
		payload = appendBodyPayload(payload, x.r, body)
	} else {
		var err error
		if payload, err = x.m.cfg.Fingerprint(x.r, body); err != nil {
			return Fingerprint{}, err
		}
	}
	return fingerprintOf(x.r.Method, x.r.URL.EscapedPath(), x.r.URL.RawQuery, payload), nil
}

// recycle gives the body's buffer to a later request: not after a panic, and not if a
// fingerprint function of the user's has seen it and may hold on to it.
func (x *exchange) recycle() {
	if x.body != nil && x.m.cfg.Fingerprint == nil {
		putBuffer(x.body)
	}
}

// wait lets a duplicate wait for the outcome of the request in flight, as long as its
// own client stays. It asks again with its own token, so if that request leaves the key
// free, this one takes it.
func (x *exchange) wait(rec Record) (Record, time.Time, error) {
	ctx, cancel := context.WithTimeout(x.r.Context(), x.m.cfg.Wait)
	defer cancel()
	waiter, canAwait := x.m.life.store.(Waiter)
	pace := !canAwait
	for interval := firstPoll; ; interval = min(interval*3/2, lastPoll) {
		if canAwait {
			_ = waiter.Await(ctx, x.key) // whatever it says, the store is asked again
		}
		if pace {
			_ = pause(ctx, interval)
		}
		pace = true // an Await that returned too early may do so again
		if x.r.Context().Err() != nil {
			return rec, time.Time{}, nil // still in flight, as far as anybody has seen
		}
		var asked time.Time
		var err error
		seen := rec
		rec, asked, err = x.m.life.reserve(x.r.Context(), x.claim)
		if err != nil && x.r.Context().Err() != nil {
			return seen, asked, nil
		}
		if err != nil || rec.State != InFlight || rec.Fingerprint != x.claim.Fingerprint || ctx.Err() != nil {
			return rec, asked, err
		}
	}
}

// Polling at these intervals, growing by half, woke a waiter 5 ms late for a handler of
// 20 ms, and 20 ms late for one of 200 ms, in 3 to 7 queries.
const (
	firstPoll = 5 * time.Millisecond
	lastPoll  = 100 * time.Millisecond
)
