package idempotency_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency"
)

func TestStoreDownAtReserve(t *testing.T) {
	onEachProtocol(t, func(t *testing.T, listen listenFunc) {
		store, h := newFaultStore("Reserve", down), &charges{}
		f := newFixture(t, store, func(c *idempotency.Config) { c.StoreTimeout = 50 * time.Millisecond })
		p := listen(f.Handler(h))
		a := p.post(t, "k", "{}")
		requireProblem(t, a, http.StatusServiceUnavailable, "idempotency_unavailable")
		require.Equal(t, "1", a.Header.Get("Retry-After"))
		require.NotContains(t, a.Body, "10.0.0.7", "the store's error is not the client's business")
		require.Zero(t, h.Load())
		e := f.event(t)
		require.Equal(t, idempotency.Unavailable, e.Outcome)
		require.ErrorIs(t, e.Err, idempotency.ErrUnavailable)
		require.ErrorIs(t, e.Err, errDown)

		store.on("Reserve", works)
		a = p.post(t, "k", "{}")
		require.Equal(t, http.StatusCreated, a.Status, "the retry is a fresh run")
		require.False(t, a.replayed())
	})
}

// A store that says nothing costs StoreTimeout, and no more.
func TestReserveIsBoundedByStoreTimeout(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]fault{"down": down, "silent": silent} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store, h := newFaultStore("Reserve", fault), &charges{}
				began := time.Now()
				a := call(newFixture(t, store).Handler(h), request("k", "{}"))
				requireProblem(t, a, http.StatusServiceUnavailable, "idempotency_unavailable")
				require.LessOrEqual(t, time.Since(began), 5*time.Second)
				require.Greater(t, time.Since(began), 4*time.Second, "given up early")
				require.Greater(t, len(store.called("Reserve")), 1, "one silent connection must not use all of the time")
				require.Zero(t, h.Load())
				synctest.Wait()
			})
		})
	}
}

// The reply to a reserve is lost: the same token is asked for again, so that the claim
// is not taken for somebody else's.
func TestLostReplyToReserve(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]fault{"error": replyLost, "silence": replySilent} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store, h := newFaultStore("Reserve", fault, works), &charges{}
				m := newFixture(t, store).Handler(h)
				a := call(m, request("k", "{}"))
				require.Equal(t, http.StatusCreated, a.Status)
				require.True(t, call(m, request("k", "{}")).replayed())
				calls := store.called("Reserve")
				require.Len(t, calls, 3)
				require.Equal(t, calls[0].claim, calls[1].claim)
				require.NotEqual(t, calls[0].claim.Token, calls[2].claim.Token)
			})
		})
	}
}

// A reserve that failed for good may still have taken effect. What it left is freed, or
// the client's next try would meet a claim that nobody runs.
func TestFailedReserveLeavesNoClaim(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, h := newFaultStore("Reserve", replyLost), &charges{}
		m := newFixture(t, store).Handler(h)
		requireProblem(t, call(m, request("k", "{}")), http.StatusServiceUnavailable, "idempotency_unavailable")
		synctest.Wait()
		store.on("Reserve", works)
		require.Equal(t, http.StatusCreated, call(m, request("k", "{}")).Status)
		require.EqualValues(t, 1, h.Load())
	})
}

// A client that left before the reserve was sent has left nothing to be freed.
func TestAReserveThatWasNeverSentIsNotFreed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newFaultStore("Reserve")
		consumer := &idempotency.Consumer{Store: store, Name: "ledger"}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		ran, err := consumer.Do(ctx, "m1", func(context.Context) error { return nil })
		require.False(t, ran)
		require.ErrorIs(t, err, context.Canceled)
		time.Sleep(time.Minute)
		require.Empty(t, store.called())
	})
}

// An answer that makes no sense is no claim.
func TestStoreThatAnswersNonsense(t *testing.T) {
	t.Parallel()
	for _, state := range []idempotency.State{0, -1, idempotency.Completed + 1} {
		h := &charges{}
		store := nonsense{newFaultStore("Reserve"), state}
		a := call(newFixture(t, store).Handler(h), request("k", "{}"))
		requireProblem(t, a, http.StatusServiceUnavailable, "idempotency_unavailable")
		require.Zero(t, h.Load())
	}
}

type nonsense struct {
	*faultStore
	state idempotency.State
}

func (s nonsense) Reserve(context.Context, idempotency.Claim) (idempotency.Record, error) {
	return idempotency.Record{State: s.state}, nil
}

func TestStoreFull(t *testing.T) {
	onEachProtocol(t, func(t *testing.T, listen listenFunc) {
		h := &charges{}
		f := newFixture(t, &idempotency.MemoryStore{MaxRecords: 1})
		p := listen(f.Handler(h))
		p.post(t, "k1", "{}")
		f.event(t)
		a := p.post(t, "k2", "{}")
		requireProblem(t, a, http.StatusServiceUnavailable, "idempotency_unavailable")
		require.Equal(t, "1", a.Header.Get("Retry-After"))
		require.ErrorIs(t, f.event(t).Err, idempotency.ErrStoreFull)
		require.True(t, p.post(t, "k1", "{}").replayed(), "what is recorded is not dropped for another")
		require.EqualValues(t, 1, h.Load())
	})
}

func TestFailOpen(t *testing.T) {
	onEachProtocol(t, func(t *testing.T, listen listenFunc) {
		store := newFaultStore("Reserve", down)
		f := newFixture(t, store, func(c *idempotency.Config) { c.FailOpen, c.StoreTimeout = true, 20*time.Millisecond })
		p := listen(f.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			a := idempotency.FromContext(r.Context())
			a.Release() // works on nil
			w.Header().Set("Attempt", time.Duration(a.Number()).String())
			body := make([]byte, 2)
			r.Body.Read(body)
			w.Write(body)
		})))
		a := p.post(t, "k", "{}")
		require.Equal(t, http.StatusOK, a.Status)
		require.Equal(t, "{}", a.Body, "the body was read for the fingerprint already")
		require.Equal(t, "0s", a.Header.Get("Attempt"))
		e := f.event(t)
		require.Equal(t, idempotency.Unprotected, e.Outcome)
		require.ErrorIs(t, e.Err, errDown)
		require.Contains(t, f.logs.String(), `"level":"WARN"`)
	})
}

// Once another request is known to run under the key, not even FailOpen runs a second
// handler.
func TestFailOpenDoesNotRunBesideAnother(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, h := newFaultStore("Reserve", works, works, down), &charges{}
		f := newFixture(t, store, func(c *idempotency.Config) { c.FailOpen, c.Wait = true, time.Second })
		reserveElsewhere(t, store, "k", "{}", time.Minute, time.Hour)
		a := call(f.Handler(h), request("k", "{}"))
		requireProblem(t, a, http.StatusServiceUnavailable, "idempotency_unavailable")
		require.Zero(t, h.Load())
		synctest.Wait()
	})
}

func TestStoreDownAtRecord(t *testing.T) {
	t.Parallel()
	for name, policy := range map[string]idempotency.AfterCrash{"hold": idempotency.Hold, "rerun": idempotency.Rerun} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store, h := newFaultStore("Complete", down), &charges{}
				f := newFixture(t, store, func(c *idempotency.Config) { c.AfterCrash = policy })
				m := f.Handler(h)
				began := time.Now()
				a := call(m, request("k", "{}"))
				require.Equal(t, http.StatusCreated, a.Status, "it ran: its client is told")
				require.LessOrEqual(t, time.Since(began), 5*time.Second)
				require.Greater(t, time.Since(began), 4*time.Second, "given up early")
				e := f.event(t)
				require.Equal(t, idempotency.Unrecorded, e.Outcome)
				require.ErrorIs(t, e.Err, errDown)
				require.Equal(t, http.StatusCreated, e.Status)
				require.Contains(t, f.logs.String(), `"level":"ERROR"`)

				store.on("Complete", works)
				requireProblem(t, call(m, request("k", "{}")), http.StatusConflict, "idempotency_key_in_flight")
				time.Sleep(30 * time.Second)
				a = call(m, request("k", "{}"))
				if policy == idempotency.Hold {
					requireProblem(t, a, http.StatusConflict, "idempotency_outcome_unknown")
					return
				}
				require.Equal(t, `{"charge":2}`, a.Body)
			})
		})
	}
}

// Neither a lost reply nor a short outage at the record changes anything.
func TestRecordIsTriedAgain(t *testing.T) {
	t.Parallel()
	for name, faults := range map[string][]fault{
		"down": {down, down, works}, "reply lost": {replyLost, works}, "silence": {silent, works}, "reply silent": {replySilent, works},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store, h := newFaultStore("Complete", faults...), &charges{}
				f := newFixture(t, store)
				m := f.Handler(h)
				call(m, request("k", "{}"))
				require.Equal(t, idempotency.Executed, f.event(t).Outcome)
				a := call(m, request("k", "{}"))
				require.True(t, a.replayed())
				require.Equal(t, `{"charge":1}`, a.Body)
			})
		})
	}
}

// A release whose reply was lost has freed the key: ErrClaimLost at the second try is
// no failure. At the first it is one.
func TestReleaseIsTriedAgain(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		faults []fault
		want   idempotency.Outcome
	}{
		"down":       {[]fault{down, works}, idempotency.Released},
		"reply lost": {[]fault{replyLost, works}, idempotency.Released},
		"taken over": {[]fault{takenOver}, idempotency.Unrecorded},
		"gone":       {[]fault{down}, idempotency.Unrecorded},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := newFaultStore("Release", test.faults...)
				f := newFixture(t, store, func(c *idempotency.Config) { c.Keep = func(int) bool { return false } })
				require.Equal(t, http.StatusCreated, call(f.Handler(&charges{}), request("k", "{}")).Status)
				require.Equal(t, test.want, f.event(t).Outcome)
			})
		})
	}
}

// The fence at the record: nothing is overwritten, nothing tried again.
func TestClaimLostAtRecord(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newFaultStore("Complete", takenOver)
		f := newFixture(t, store)
		began := time.Now()
		require.Equal(t, http.StatusCreated, call(f.Handler(&charges{}), request("k", "{}")).Status)
		require.Zero(t, time.Since(began))
		require.Len(t, store.called("Complete"), 1)
		e := f.event(t)
		require.Equal(t, idempotency.Unrecorded, e.Outcome)
		require.ErrorIs(t, e.Err, idempotency.ErrClaimLost)
	})
}

// The record is durable before the first byte of the response leaves.
func TestRecordBeforeResponse(t *testing.T) {
	t.Parallel()
	for name, size := range map[string]int{"usual": 10, "longer than is recorded": 2 << 20} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := httptest.NewRecorder()
			store := newFaultStore("Complete", func(_ context.Context, do func() error) error {
				require.Empty(t, w.Header())
				require.False(t, w.Flushed)
				require.Zero(t, w.Body.Len())
				return do()
			})
			newFixture(t, store).Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Location", "/charges/1")
				w.WriteHeader(http.StatusCreated)
				require.NoError(t, http.NewResponseController(w).Flush())
				io.Copy(w, strings.NewReader(strings.Repeat("x", size)))
			})).ServeHTTP(w, request("k", "{}"))
			require.NotEmpty(t, store.called("Complete"))
			require.Equal(t, http.StatusCreated, w.Code)
			require.Equal(t, size, w.Body.Len())
		})
	}
}
