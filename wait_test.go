package idempotency_test

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency"
)

func waits(d time.Duration) func(*idempotency.Config) {
	return func(c *idempotency.Config) { c.Wait = d }
}

func TestDuplicateWaitsForTheResponse(t *testing.T) {
	onEachProtocol(t, func(t *testing.T, listen listenFunc) {
		for name, store := range map[string]idempotency.Store{"woken": &idempotency.MemoryStore{}, "polling": newFaultStore("Reserve")} {
			t.Run(name, func(t *testing.T) {
				h, began, finish := occupied(&charges{})
				p := listen(newFixture(t, store, waits(guard)).Handler(h))
				answers := make(chan answer)
				ask := func() {
					a, err := p.do(p.request(t, "k", nil))
					assert.NoError(t, err)
					answers <- a
				}
				go ask()
				closed(t, began)
				go ask()
				requireProblem(t, p.post(t, "k", "another"), http.StatusUnprocessableEntity, "idempotency_key_reused")
				finish()
				first, second := <-answers, <-answers
				require.Equal(t, first.Body, second.Body)
				require.NotEqual(t, first.replayed(), second.replayed())
			})
		}
	})
}

// A waiter in memory is woken when the response is there, and asks nothing in between.
// With a store that cannot wake it, it asks at growing intervals.
func TestWaiterIsWokenOrPolls(t *testing.T) {
	for name, test := range map[string]struct {
		store    func(*faultStore) idempotency.Store
		late     time.Duration // after the outcome, at most
		reserves int           // of the waiter, at most
	}{
		"woken":   {func(s *faultStore) idempotency.Store { return awaitable{s} }, 0, 2},
		"polling": {func(s *faultStore) idempotency.Store { return s }, 100 * time.Millisecond, 110},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				store := newFaultStore("Reserve")
				h, began, finish := occupied(&charges{})
				m := newFixture(t, test.store(store), waits(time.Minute)).Handler(h)
				first, second := make(chan answer), make(chan answer)
				go func() { first <- call(m, request("k", "{}")) }()
				<-began
				go func() { second <- call(m, request("k", "{}")) }()
				time.Sleep(10 * time.Second)
				finish()
				end := time.Now()
				require.False(t, (<-first).replayed())
				require.True(t, (<-second).replayed())
				require.LessOrEqual(t, time.Since(end), test.late)
				reserves := store.called("Reserve")
				require.LessOrEqual(t, len(reserves)-1, test.reserves)
				for _, c := range reserves[2:] {
					require.Equal(t, reserves[1].claim, c.claim, "a waiter asks with one token")
				}
			})
		})
	}
}

// awaitable is a faultStore that wakes waiters as its MemoryStore does.
type awaitable struct{ *faultStore }

func (s awaitable) Await(ctx context.Context, key idempotency.Key) error {
	return s.mem.Await(ctx, key)
}

// Await may return too early, or fail at once. The store is not asked without a pause.
func TestAwaitThatIsNoHelp(t *testing.T) {
	for name, err := range map[string]error{"too early": nil, "broken": errors.New("no listener")} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				store := newFaultStore("Reserve")
				f := newFixture(t, impatient{store, err}, waits(10*time.Second))
				reserveElsewhere(t, store, "k", "{}", time.Minute, time.Hour)
				began := time.Now()
				a := call(f.Handler(&charges{}), request("k", "{}"))
				requireProblem(t, a, http.StatusConflict, "idempotency_key_in_flight")
				require.Equal(t, 10*time.Second, time.Since(began))
				require.Less(t, len(store.called("Reserve")), 200)
				require.Greater(t, len(store.called("Reserve")), 90)
			})
		})
	}
}

type impatient struct {
	*faultStore
	err error
}

func (s impatient) Await(ctx context.Context, _ idempotency.Key) error {
	if len(s.called("Reserve")) > 200 {
		<-ctx.Done() // enough
	}
	return s.err
}

func TestWaitIsOver(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFixture(t, nil, waits(3*time.Second))
		reserveElsewhere(t, f.store, "k", "{}", 10*time.Second, time.Hour)
		began := time.Now()
		a := call(f.Handler(&charges{}), request("k", "{}"))
		requireProblem(t, a, http.StatusConflict, "idempotency_key_in_flight")
		require.Equal(t, 3*time.Second, time.Since(began))
		require.Equal(t, "7", a.Header.Get("Retry-After"), "the lease that is left now")
	})
}

// The claim that is waited for lapses: the waiter meets an interrupted one.
func TestWaitEndsWithTheLease(t *testing.T) {
	for name, policy := range map[string]idempotency.AfterCrash{"hold": idempotency.Hold, "rerun": idempotency.Rerun} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newFixture(t, nil, waits(time.Minute), func(c *idempotency.Config) { c.AfterCrash = policy })
				reserveElsewhere(t, f.store, "k", "{}", 5*time.Second, time.Hour)
				began := time.Now()
				a := call(f.Handler(&charges{}), request("k", "{}"))
				require.Equal(t, 5*time.Second, time.Since(began))
				if policy == idempotency.Rerun {
					require.Equal(t, http.StatusCreated, a.Status)
					require.Equal(t, 2, f.event(t).Attempt)
					return
				}
				requireProblem(t, a, http.StatusConflict, "idempotency_outcome_unknown")
			})
		})
	}
}

// The request that was waited for frees its key: one waiter takes it, the others wait
// for that one.
func TestWaitersAfterARelease(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var runs, inside atomic.Int64
		h := newFixture(t, nil, waits(time.Minute)).Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			assert.EqualValues(t, 1, inside.Add(1), "two at a time")
			defer inside.Add(-1)
			time.Sleep(time.Second)
			if runs.Add(1) < 3 {
				idempotency.FromContext(r.Context()).Release()
				w.WriteHeader(http.StatusBadRequest)
				return
			}
			w.WriteHeader(http.StatusCreated)
		}))
		answers := make(chan answer)
		for range 10 {
			go func() { answers <- call(h, request("k", "{}")) }()
		}
		statuses := make(map[int]int)
		for range 10 {
			statuses[(<-answers).Status]++
		}
		require.Equal(t, map[int]int{http.StatusBadRequest: 2, http.StatusCreated: 8}, statuses)
		require.EqualValues(t, 3, runs.Load())
	})
}

// A waiting duplicate follows its own client: it reserves nothing once that has left.
func TestWaiterWhoseClientLeaves(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store, runs := newFaultStore("Reserve"), &charges{}
		f := newFixture(t, store, waits(time.Hour))
		claim := reserveElsewhere(t, store, "k", "{}", time.Minute, time.Hour)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan answer)
		h := f.Handler(runs)
		go func() { done <- call(h, request("k", "{}").WithContext(ctx)) }()
		time.Sleep(time.Second)
		cancel()
		require.NoError(t, store.Release(t.Context(), claim))
		requireProblem(t, <-done, http.StatusConflict, "idempotency_key_in_flight")
		synctest.Wait()
		require.Zero(t, runs.Load())
		require.Equal(t, http.StatusCreated, call(h, request("k", "{}")).Status)
	})
}

// The store goes down while a duplicate waits: 503, and nothing is run.
func TestStoreDownWhileWaiting(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store, runs := newFaultStore("Reserve", works, works, down), &charges{}
		f := newFixture(t, store, waits(time.Minute))
		reserveElsewhere(t, store, "k", "{}", time.Minute, time.Hour)
		requireProblem(t, call(f.Handler(runs), request("k", "{}")), http.StatusServiceUnavailable, "idempotency_unavailable")
		require.Zero(t, runs.Load())
		require.NoError(t, f.Drain(t.Context()))
	})
}
