// Package storetest checks that a Store keeps the promises on which payments rest.
//
// A test of a store calls [Run] with a function that makes an empty one:
//
//	func TestStore(t *testing.T) {
//		storetest.Run(t, func(t *testing.T) idempotency.Store {
//			db := openTestDatabase(t) // closed by t.Cleanup
//			return mystore.New(db, "keys_"+strings.ToLower(rand.Text()))
//		})
//	}
//
// Each promise is a subtest with a store of its own. A failure says what was promised,
// what a broken promise costs, and what was found. Subtests run in parallel, so the
// stores must not get in one another's way; most of the time they wait, and
// go test -parallel 16 makes that shorter.
//
// Time is real: leases and TTLs of some hundred milliseconds, and a store must keep
// them to 50 ms. What must be live is given a minute, or is judged only if the clock
// shows that it was asked in time, so a slow machine makes no store fail.
package storetest

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/seed-2d1e5f61/idempotency"
)

// Run checks a store against every promise of [idempotency.Store], a subtest each, with
// an empty store from newStore. [idempotency.Sweeper], [idempotency.Waiter], and the
// methods Stuck and Resolve as [idempotency.PostgresStore] has them, are checked if the
// store has them.
//
// A store may refuse with an error a key that has NUL or invalid UTF-8 in it, or that
// lacks tenant or value; it may never take one key for another.
func Run(t *testing.T, newStore func(t *testing.T) idempotency.Store) {
	for _, c := range slices.Concat(ownerChecks, settleChecks, leaseChecks, expiryChecks,
		responseChecks, keyChecks, contextChecks, optionalChecks) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			hung, stop := context.WithTimeout(context.Background(), limit+grace)
			defer stop()
			c.run(&probe{T: t, ctx: ctx, hung: hung, store: newStore(t), check: c})
		})
	}
}

// Variables only for the suite's own tests.
var (
	limit = time.Minute      // for each subtest; then its context ends
	grace = 10 * time.Second // for a call to return once its context has ended
)

const (
	short = 100 * time.Millisecond // a lease or TTL that is waited for
	slack = 50 * time.Millisecond  // how exactly a store must keep time
	long  = time.Hour              // what must not end during the test
)

// check is one promise.
type check struct {
	name    string
	promise string // what a store promises
	orElse  string // what happens in production when it does not keep it
	run     func(p *probe)
}

// probe is a running check.
type probe struct {
	*testing.T
	check check
	store idempotency.Store
	ctx   context.Context // of every call; its deadline is the check's
	hung  context.Context // ends when a call should long have returned
	keys  int
}

// broken ends the check: the promise was not kept.
func (p *probe) broken(format string, args ...any) {
	p.Helper()
	p.Fatalf("promise: "+p.check.promise+"\nor else: "+p.check.orElse+"\nfound:   "+format, args...)
}

// claim is a claim on a key that nobody has used yet.
func (p *probe) claim() idempotency.Claim {
	p.keys++
	return idempotency.Claim{
		Key:         idempotency.Key{Tenant: "tenant", Endpoint: "POST /charges", Value: strconv.Itoa(p.keys)},
		Fingerprint: idempotency.Fingerprint{1, 2, 3},
		Token:       uuid.New(),
		Lease:       long,
		TTL:         long,
	}
}

// retry is a later attempt at the same request.
func retry(c idempotency.Claim) idempotency.Claim {
	c.Token = uuid.New()
	c.Lease, c.TTL = long, long
	return c
}

// rerun is a later attempt that may take over.
func rerun(c idempotency.Claim) idempotency.Claim {
	c = retry(c)
	c.Rerun = true
	return c
}

// call runs one call of the store, and ends the check if it hangs.
func (p *probe) call(method string, f func(ctx context.Context) error) error {
	p.Helper()
	done := make(chan error, 1)
	go func() { done <- f(p.ctx) }()
	select {
	case err := <-done:
		return err
	case <-p.hung.Done():
		p.Fatalf("%s has not returned %s after its context ended", method, grace)
		return nil
	}
}

// reserve is Reserve where an error is none of the answers.
func (p *probe) reserve(c idempotency.Claim) (rec idempotency.Record) {
	p.Helper()
	err := p.call("Reserve", func(ctx context.Context) (err error) {
		rec, err = p.store.Reserve(ctx, c)
		return err
	})
	if err != nil {
		p.Fatalf("Reserve: %v", err)
	}
	return rec
}

// expect reserves and wants to be told state.
func (p *probe) expect(c idempotency.Claim, state idempotency.State, when string) idempotency.Record {
	p.Helper()
	rec := p.reserve(c)
	if rec.State != state {
		p.broken("%s, Reserve says %s; want %s", when, nameOf(rec.State), nameOf(state))
	}
	return rec
}

func nameOf(s idempotency.State) string {
	switch s {
	case idempotency.Acquired:
		return "Acquired"
	case idempotency.InFlight:
		return "InFlight"
	case idempotency.Interrupted:
		return "Interrupted"
	case idempotency.Completed:
		return "Completed"
	}
	return "the unknown state " + strconv.Itoa(int(s))
}

// operation is one of the three calls that need the token.
type operation struct {
	name string
	call func(s idempotency.Store, ctx context.Context, c idempotency.Claim) error
}

var (
	extend  = operation{"Extend", idempotency.Store.Extend}
	release = operation{"Release", idempotency.Store.Release}
)

func complete(resp idempotency.Response) operation {
	return operation{"Complete", func(s idempotency.Store, ctx context.Context, c idempotency.Claim) error {
		return s.Complete(ctx, c, resp)
	}}
}

// answer is a response that can be told from others.
func answer(body string) idempotency.Response {
	return idempotency.Response{Status: 200, Body: []byte(body)}
}

func (p *probe) do(op operation, c idempotency.Claim) error {
	p.Helper()
	return p.call(op.name, func(ctx context.Context) error { return op.call(p.store, ctx, c) })
}

// must wants op to succeed.
func (p *probe) must(op operation, c idempotency.Claim, when string) {
	p.Helper()
	if err := p.do(op, c); err != nil {
		p.broken("%s, %s says %v; want no error", when, op.name, err)
	}
}

// lost wants op to be refused.
func (p *probe) lost(op operation, c idempotency.Claim, when string) {
	p.Helper()
	if err := p.do(op, c); !errors.Is(err, idempotency.ErrClaimLost) {
		p.broken("%s, %s says %v; want ErrClaimLost", when, op.name, err)
	}
}

// replays wants the outcome of c's key to be resp.
func (p *probe) replays(c idempotency.Claim, resp idempotency.Response, when string) {
	p.Helper()
	rec := p.expect(retry(c), idempotency.Completed, when)
	if diff := difference(rec.Response, resp); diff != "" {
		p.broken("%s, the recorded %s", when, diff)
	}
}

// race reserves all claims at the same moment.
func (p *probe) race(claims []idempotency.Claim) []idempotency.Record {
	p.Helper()
	recs, errs := make([]idempotency.Record, len(claims)), make([]error, len(claims))
	start := make(chan struct{})
	var racers sync.WaitGroup
	for i, c := range claims {
		racers.Go(func() {
			<-start
			recs[i], errs[i] = p.store.Reserve(p.ctx, c)
		})
	}
	close(start)
	_ = p.call("Reserve", func(context.Context) error { racers.Wait(); return nil })
	if err := errors.Join(errs...); err != nil {
		p.Fatalf("Reserve: %v", err)
	}
	return recs
}

// sleepPast waits until what began at since at the latest and lasts d is surely over.
func sleepPast(since time.Time, d time.Duration) { time.Sleep(time.Until(since.Add(d + slack))) }

// surely reports whether what began at since at the earliest and lasts d is not over.
func surely(since time.Time, d time.Duration) bool { return time.Since(since) < d-slack }

// inTime calls attempt with longer and longer units of time until the machine was fast
// enough for it to judge, which it reports.
func (p *probe) inTime(attempt func(unit time.Duration) bool) {
	for unit := 3 * short; unit < limit/8; unit *= 2 {
		if attempt(unit) {
			return
		}
	}
	p.Skip("NOT JUDGED: the machine stalls for seconds")
}
