package idempotency_test

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency"
)

// sleeper is a handler that runs for so long, or until its context ends.
func sleeper(d time.Duration, cause *error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-time.After(d):
		case <-r.Context().Done():
			*cause = context.Cause(r.Context())
		}
		w.WriteHeader(http.StatusCreated)
	})
}

// bubble runs test inside a synctest bubble.
func bubble(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, test)
}

// A handler may run for much longer than its lease.
func TestLeaseIsRenewed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newFaultStore("Extend")
		f := newFixture(t, store)
		var cause error
		h := f.Handler(sleeper(5*time.Minute+time.Second, &cause))
		first := make(chan answer)
		ctx, leave := context.WithCancel(t.Context())
		go func() { first <- call(h, request("k", "{}").WithContext(ctx)) }()
		synctest.Wait()
		leave() // a claim does not depend on its client
		for range 30 {
			time.Sleep(10 * time.Second)
			synctest.Wait()
			requireProblem(t, call(h, request("k", "{}")), http.StatusConflict, "idempotency_key_in_flight")
		}
		require.Equal(t, http.StatusCreated, (<-first).Status)
		require.NoError(t, cause)
		extends := store.called("Extend")
		require.Len(t, extends, 30, "one for each third of the lease")
		claim := store.called("Reserve")[0].claim
		for _, c := range append(extends, store.called("Complete")...) {
			require.Equal(t, claim, c.claim, "every call carries the claim and its token")
		}
		require.True(t, call(h, request("k", "{}")).replayed())
	})
}

// A handler that writes a long response after its claim was lost records nothing, and its
// lease is not taken up again.
func TestNothingIsRecordedEarlyAfterTheClaimIsLost(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newFaultStore("Extend", takenOver)
		f := newFixture(t, store, func(c *idempotency.Config) { c.MaxResponseBytes = 10 })
		a := call(f.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
			io.WriteString(w, "eleven bytes")
			time.Sleep(time.Minute)
		})), request("k", "{}"))
		require.Equal(t, "eleven bytes", a.Body)
		require.Equal(t, idempotency.Unrecorded, f.event(t).Outcome)
		require.Len(t, store.called("Extend"), 1)
		require.Empty(t, store.called("Complete"))
	})
}

// A goroutine's early record that fails after the handler returned does not take the
// lease up again.
func TestNoRenewalAfterALateEarlyRecord(t *testing.T) {
	bubble(t, func(t *testing.T) {
		settled := make(chan struct{})
		store := newFaultStore("Complete", func(context.Context, func() error) error {
			<-settled
			return idempotency.ErrStoreFull
		}, works)
		f := newFixture(t, store, func(c *idempotency.Config) { c.MaxResponseBytes = 10 })
		h := f.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			go io.WriteString(w, "eleven bytes")
			synctest.Wait() // until it hangs in the store
		}))
		require.Equal(t, "eleven bytes", call(h, request("k", "{}")).Body)
		require.Equal(t, idempotency.Executed, f.event(t).Outcome)
		close(settled)
		time.Sleep(time.Minute)
		require.Empty(t, store.called("Extend"))
		require.NotContains(t, f.logs.String(), "claim lost")
		require.Equal(t, "omitted", call(h, request("k", "{}")).Header.Get("Idempotency-Replay"))
	})
}

// An early record whose reply was lost is not taken for somebody else's claim.
func TestEarlyRecordWhoseReplyWasLost(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newFaultStore("Complete", replyLost, replySilent, replySilent, works)
		f := newFixture(t, store, func(c *idempotency.Config) { c.MaxResponseBytes = 10 })
		var cause error
		h := f.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			io.WriteString(w, "eleven bytes")
			sleeper(time.Minute, &cause).ServeHTTP(w, r)
		}))
		require.Equal(t, "eleven bytes", call(h, request("k", "{}")).Body)
		require.NoError(t, cause)
		require.Empty(t, f.logs.lines(t))
		require.Equal(t, idempotency.Executed, f.event(t).Outcome)
		require.Equal(t, "omitted", call(h, request("k", "{}")).Header.Get("Idempotency-Replay"))
	})
}

// A fast handler costs no renewal, and none comes after it.
func TestNoRenewalAfterTheHandler(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newFaultStore("Extend")
		var cause error
		call(newFixture(t, store).Handler(sleeper(10*time.Second-1, &cause)), request("k", "{}"))
		time.Sleep(time.Minute)
		require.Empty(t, store.called("Extend"))
	})
}

// A renewal that gets no answer is tried again, and one that comes in time is enough. The
// log has the first failure of each series.
func TestRenewalIsTriedAgain(t *testing.T) {
	for name, test := range map[string]struct {
		faults []fault
		series int
	}{
		"down":         {[]fault{down, down, down, works}, 1},
		"down twice":   {[]fault{down, down, works, down, works}, 2},
		"reply lost":   {[]fault{replyLost, works}, 1},
		"silence":      {[]fault{silent, works}, 1},
		"reply silent": {[]fault{replySilent, works}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				var cause error
				f := newFixture(t, newFaultStore("Extend", test.faults...))
				h := f.Handler(sleeper(2*time.Minute, &cause))
				require.Equal(t, http.StatusCreated, call(h, request("k", "{}")).Status)
				require.NoError(t, cause)
				require.Equal(t, idempotency.Executed, f.event(t).Outcome)
				require.Len(t, f.logs.lines(t), test.series)
				require.True(t, call(h, request("k", "{}")).replayed())
			})
		})
	}
}

// Without an answer the claim counts as lost when the lease would be over by the store's
// clock: not before, and not later.
func TestClaimIsLostWithTheStore(t *testing.T) {
	for name, failure := range map[string]struct {
		fault fault
		with  error
	}{"down": {down, errDown}, "silence": {silent, context.DeadlineExceeded}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				store := newFaultStore("Extend", failure.fault)
				f := newFixture(t, store)
				var cause error
				began := time.Now()
				h := f.Handler(sleeper(time.Hour, &cause))
				require.Equal(t, http.StatusCreated, call(h, request(secretKey, "{}")).Status)
				require.Equal(t, 30*time.Second, time.Since(began))
				require.NoError(t, f.Drain(t.Context()))
				require.ErrorIs(t, cause, idempotency.ErrClaimLost)
				require.Greater(t, len(store.called("Extend")), 1)
				require.Empty(t, store.called("Complete", "Release"), "another may own the key by now")
				e := f.event(t)
				require.Equal(t, idempotency.Unrecorded, e.Outcome)
				for _, err := range []error{cause, e.Err} {
					require.ErrorIs(t, err, idempotency.ErrClaimLost)
					require.ErrorIs(t, err, failure.with)
					require.ErrorContains(t, err, "lease could not be renewed: "+failure.with.Error())
				}
				hash := hex.EncodeToString(keyDigest("single", "POST /charges", secretKey))[:32]
				require.ElementsMatch(t, []logLine{
					{"WARN", "idempotency: lease not renewed, will be tried again", hash, "POST /charges", 1, failure.with.Error()},
					{"WARN", "idempotency: claim lost while the handler runs", hash, "POST /charges", 1, cause.Error()},
					{"ERROR", "idempotency: the handler ran, its outcome is not recorded", hash, "POST /charges", 1, cause.Error()},
				}, f.logs.lines(t))
				require.NotContains(t, f.logs.String(), secretKey)
			})
		})
	}
}

// As soon as the store says that the claim is lost, the handler's context ends.
func TestHandlerLearnsThatItsClaimIsLost(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newFaultStore("Extend", works, takenOver)
		f := newFixture(t, store)
		var cause error
		began := time.Now()
		require.Equal(t, http.StatusCreated, call(f.Handler(sleeper(time.Hour, &cause)), request("k", "{}")).Status)
		require.Equal(t, 20*time.Second, time.Since(began))
		require.ErrorIs(t, cause, idempotency.ErrClaimLost)
		require.Empty(t, store.called("Complete", "Release"))
		require.Equal(t, idempotency.Unrecorded, f.event(t).Outcome)
		synctest.Wait()
		require.Contains(t, f.logs.String(), `"level":"WARN"`)
		time.Sleep(time.Hour)
		require.Len(t, store.called("Extend"), 2, "renewed after it was lost")
	})
}

// late is a call that takes effect long after the caller's lease.
var late fault = func(_ context.Context, do func() error) error { time.Sleep(time.Minute); return do() }

// A process that stalls past its lease finds that another has taken over: its context
// ends, it overwrites nothing, and the new owner's outcome stands.
func TestStalledOwnerOverwritesNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		// The lease lapses while the first renewal hangs, as it does in a stopped process.
		stalled := newFixture(t, newFaultStore("Extend", late, works), func(c *idempotency.Config) { c.AfterCrash = idempotency.Rerun })
		h := stalled.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if idempotency.FromContext(r.Context()).Number() == 2 {
				io.WriteString(w, "the new owner's")
				return
			}
			<-r.Context().Done()
			require.ErrorIs(t, context.Cause(r.Context()), idempotency.ErrClaimLost)
			io.WriteString(w, "the stalled one's")
		}))
		first := make(chan answer)
		go func() { first <- call(h, request("k", "{}")) }()
		time.Sleep(31 * time.Second)
		require.Equal(t, "the new owner's", call(h, request("k", "{}")).Body)
		require.Equal(t, idempotency.Executed, stalled.event(t).Outcome)
		require.Equal(t, "the stalled one's", (<-first).Body)
		e := stalled.event(t)
		require.Equal(t, idempotency.Unrecorded, e.Outcome)
		require.Equal(t, 1, e.Attempt)
		require.Equal(t, "the new owner's", call(h, request("k", "{}")).Body)
	})
}

// A process that was stopped past its lease may still be the owner, if nobody came.
func TestStoppedProcessThatStillOwnsItsClaim(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFixture(t, newFaultStore("Extend", late, works))
		var cause error
		require.Equal(t, http.StatusCreated, call(f.Handler(sleeper(3*time.Minute, &cause)), request("k", "{}")).Status)
		require.NoError(t, cause)
		require.Equal(t, idempotency.Executed, f.event(t).Outcome)
	})
}

func TestHandlerTimeout(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFixture(t, nil, func(c *idempotency.Config) { c.HandlerTimeout = 7 * time.Second })
		var cause error
		began := time.Now()
		h := f.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			deadline, ok := r.Context().Deadline()
			require.True(t, ok)
			require.Equal(t, 7*time.Second, time.Until(deadline))
			sleeper(time.Hour, &cause).ServeHTTP(w, r)
		}))
		require.Equal(t, http.StatusCreated, call(h, request("k", "{}")).Status)
		require.Equal(t, 7*time.Second, time.Since(began))
		require.Equal(t, context.DeadlineExceeded, cause)
		require.Equal(t, idempotency.Executed, f.event(t).Outcome, "what it answered is the outcome")
		require.True(t, call(h, request("k", "{}")).replayed())
	})
}

// The ordinary request costs no goroutine beside its own.
func TestNoGoroutinePerRequest(t *testing.T) {
	const requests = 50
	var inside sync.WaitGroup
	inside.Add(requests)
	release := make(chan struct{})
	h := newFixture(t, nil).Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		inside.Done()
		<-release
	}))
	before := runtime.NumGoroutine()
	var done sync.WaitGroup
	for n := range requests {
		done.Go(func() { call(h, request(fmt.Sprint(n), "{}")) })
	}
	inside.Wait()
	running := runtime.NumGoroutine()
	close(release)
	done.Wait()
	require.LessOrEqual(t, running, before+requests)
}

// No lock is held over a store's call: while renewals and records of some requests hang,
// others go on, and a handler whose renewal hangs is answered.
func TestNothingWaitsForAHangingStoreCall(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newFaultStore("Extend", silent).on("Complete", silent, works)
		f := newFixture(t, store)
		var cause error
		h := f.Handler(sleeper(12*time.Second, &cause))
		began := time.Now()
		first := make(chan time.Duration)
		go func() {
			call(h, request("k1", "{}"))
			first <- time.Since(began)
		}()
		time.Sleep(12 * time.Second) // the first one's renewal and record hang
		synctest.Wait()
		fast := f.Handler(&charges{})
		require.Equal(t, http.StatusCreated, call(fast, request("k2", "{}")).Status)
		require.Equal(t, 12*time.Second, time.Since(began))
		require.Less(t, <-first, 15*time.Second)
		require.NoError(t, f.Drain(t.Context()), "the renewal that still hangs")
	})
}
