package idempotency_test

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency"
)

func TestCompletedIsReplayed(t *testing.T) {
	onEachProtocol(t, func(t *testing.T, listen listenFunc) {
		h := &charges{}
		p := listen(newFixture(t, nil).Handler(h))
		first := p.post(t, "k", "{}")
		require.Equal(t, http.StatusCreated, first.Status)
		require.NotContains(t, first.Header, "Idempotent-Replayed")
		for range 3 {
			again := p.post(t, "k", "{}")
			require.Equal(t, http.StatusCreated, again.Status)
			require.Equal(t, "true", again.Header.Get("Idempotent-Replayed"))
			require.Equal(t, "/charges/1", again.Header.Get("Location"))
			require.Equal(t, "application/json", again.Header.Get("Content-Type"))
			require.Equal(t, first.Body, again.Body)
		}
		require.EqualValues(t, 1, h.Load())
	})
}

func TestReplayedHeaderIsNamed(t *testing.T) {
	onEachProtocol(t, func(t *testing.T, listen listenFunc) {
		p := listen(newFixture(t, nil, func(c *idempotency.Config) { c.ReplayedHeader = "x-replay" }).Handler(&charges{}))
		require.NotContains(t, p.post(t, "k", "{}").Header, "X-Replay")
		a := p.post(t, "k", "{}")
		require.Equal(t, "true", a.Header.Get("X-Replay"))
		require.NotContains(t, a.Header, "Idempotent-Replayed")
	})
}

// A 4xx or 5xx that the handler means is an outcome like any other.
func TestEveryStatusIsRecorded(t *testing.T) {
	onEachProtocol(t, func(t *testing.T, listen listenFunc) {
		runs := 0
		p := listen(newFixture(t, nil).Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			runs++
			status, _ := strconv.Atoi(r.Header.Get("Status"))
			w.WriteHeader(status)
		})))
		all := []string{"200", "201", "202", "204", "301", "303", "304", "400", "402", "404", "409", "422", "429", "500", "502", "503", "599"}
		for _, status := range all {
			for _, replayed := range []bool{false, true} {
				a := p.post(t, "k"+status, "{}", "Status", status)
				require.Equal(t, status, strconv.Itoa(a.Status))
				require.Equal(t, replayed, a.replayed())
			}
		}
		require.Len(t, all, runs)
	})
}

func TestKeepDecidesByStatus(t *testing.T) {
	onEachProtocol(t, func(t *testing.T, listen listenFunc) {
		status := make(chan int, 2)
		f := newFixture(t, nil, func(c *idempotency.Config) { c.Keep = func(status int) bool { return status < 500 } })
		p := listen(f.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(<-status)
		})))
		status <- 503
		status <- 402
		require.Equal(t, 503, p.post(t, "k", "{}").Status)
		require.Equal(t, idempotency.Released, f.event(t).Outcome)
		a := p.post(t, "k", "{}")
		require.Equal(t, 402, a.Status, "the key was free")
		require.False(t, a.replayed())
		a = p.post(t, "k", "{}")
		require.Equal(t, 402, a.Status)
		require.True(t, a.replayed())
	})
}

// occupied returns a handler that runs until finish is called, and whose start began
// tells.
func occupied(h http.Handler) (handler http.Handler, began <-chan struct{}, finish func()) {
	start, end := make(chan struct{}), make(chan struct{})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(start)
		<-end
		h.ServeHTTP(w, r)
	}), start, func() { close(end) }
}

func TestInFlightIsConflict(t *testing.T) {
	onEachProtocol(t, func(t *testing.T, listen listenFunc) {
		h, began, finish := occupied(&charges{})
		f := newFixture(t, nil, func(c *idempotency.Config) { c.Lease = 7 * time.Second })
		p := listen(f.Handler(h))
		first := make(chan answer)
		go func() {
			a, err := p.do(p.request(t, "k", nil))
			assert.NoError(t, err)
			first <- a
		}()
		closed(t, began)
		a := p.post(t, "k", "")
		requireProblem(t, a, http.StatusConflict, "idempotency_key_in_flight")
		seconds, err := strconv.Atoi(a.Header.Get("Retry-After"))
		require.NoError(t, err)
		require.GreaterOrEqual(t, seconds, 1)
		require.LessOrEqual(t, seconds, 7)
		requireProblem(t, p.post(t, "k", "another"), http.StatusUnprocessableEntity, "idempotency_key_reused")
		finish()
		require.Equal(t, http.StatusCreated, (<-first).Status)
		require.True(t, p.post(t, "k", "").replayed())
	})
}

// reserveElsewhere claims POST /charges with this body, as another process would.
func reserveElsewhere(t testing.TB, store idempotency.Store, key, body string, lease, ttl time.Duration) idempotency.Claim {
	t.Helper()
	// The fingerprint is what the middleware makes of the same request.
	probe := newFaultStore("Reserve")
	call(newFixture(t, probe).Handler(&charges{}), request(key, body))
	claim := probe.called("Reserve")[0].claim
	claim.Token, claim.Lease, claim.TTL = uuid.New(), lease, ttl
	rec, err := store.Reserve(context.Background(), claim)
	require.NoError(t, err)
	require.Equal(t, idempotency.Acquired, rec.State)
	return claim
}

// Retry-After is the lease that is left in whole seconds, rounded up.
func TestRetryAfterIsTheLeaseLeft(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, nil)
		reserveElsewhere(t, f.store, "k", "{}", 5*time.Second, time.Hour)
		h := f.Handler(&charges{})
		for _, step := range []struct {
			pass time.Duration
			want string
		}{{0, "5"}, {time.Nanosecond, "5"}, {time.Second - time.Nanosecond, "4"}, {3500 * time.Millisecond, "1"}, {499 * time.Millisecond, "1"}} {
			time.Sleep(step.pass)
			a := call(h, request("k", "{}"))
			requireProblem(t, a, http.StatusConflict, "idempotency_key_in_flight")
			require.Equal(t, step.want, a.Header.Get("Retry-After"))
		}
	})
}

func TestInterruptedIsHeld(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, runs := newFixture(t, nil), &charges{}
		h := f.Handler(runs)
		reserveElsewhere(t, f.store, "k", "{}", time.Second, time.Hour)
		time.Sleep(time.Second)
		for range 2 {
			a := call(h, request("k", "{}"))
			requireProblem(t, a, http.StatusConflict, "idempotency_outcome_unknown")
			require.NotContains(t, a.Header, "Retry-After", "waiting does not help")
			requireProblem(t, call(h, request("k", "another")), http.StatusUnprocessableEntity, "idempotency_key_reused")
		}
		require.Zero(t, runs.Load())

		time.Sleep(time.Hour - time.Second)
		require.Equal(t, http.StatusCreated, call(h, request("k", "another")).Status, "the TTL is over")
	})
}

// A 409 with Retry-After is in flight, one without it is not: what an outer layer set does
// not make the one look like the other.
func TestRetryAfterOfAnOuterLayerIsTakenAway(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func(*idempotency.Config){
		"WriteError": func(*idempotency.Config) {},
		"ErrorHandler": func(c *idempotency.Config) {
			c.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(409) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, nil, answer)
				inner := f.Handler(&charges{})
				h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Retry-After", "120")
					inner.ServeHTTP(w, r)
				})
				reserveElsewhere(t, f.store, "k", "{}", 7*time.Second, time.Hour)
				require.Equal(t, []string{"7"}, call(h, request("k", "{}")).Header["Retry-After"])
				time.Sleep(7 * time.Second)
				a := call(h, request("k", "{}"))
				require.Equal(t, http.StatusConflict, a.Status)
				require.NotContains(t, a.Header, "Retry-After")
			})
		})
	}
}

func TestResolvedWithoutAStatusIsReplayedAs200(t *testing.T) {
	t.Parallel()
	for name, resp := range map[string]idempotency.Response{
		"body": {Body: []byte("found")},
		"ref":  {Ref: "found"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f, runs := newFixture(t, nil, func(c *idempotency.Config) {
					c.Rebuild = func(w http.ResponseWriter, _ *http.Request, ref string) { io.WriteString(w, ref) }
				}), &charges{}
				h := f.Handler(runs)
				claim := reserveElsewhere(t, f.store, "k", "{}", time.Second, time.Hour)
				time.Sleep(time.Second)
				require.NoError(t, f.store.(*idempotency.MemoryStore).Resolve(t.Context(), claim.Key, claim.Token, &resp))
				a := call(h, request("k", "{}"))
				require.Equal(t, http.StatusOK, a.Status)
				require.Equal(t, "found", a.Body)
				require.Zero(t, runs.Load())
			})
		})
	}
}

func TestInterruptedIsRerun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		runs := &charges{}
		f := newFixture(t, nil, func(c *idempotency.Config) { c.AfterCrash = idempotency.Rerun })
		h := f.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			require.Equal(t, 2, idempotency.FromContext(r.Context()).Number())
			runs.ServeHTTP(w, r)
		}))
		reserveElsewhere(t, f.store, "k", "{}", time.Second, time.Hour)
		requireProblem(t, call(h, request("k", "{}")), http.StatusConflict, "idempotency_key_in_flight")
		time.Sleep(time.Second)
		requireProblem(t, call(h, request("k", "another")), http.StatusUnprocessableEntity, "idempotency_key_reused")
		require.Zero(t, runs.Load())
		require.Equal(t, http.StatusCreated, call(h, request("k", "{}")).Status)
		require.True(t, call(h, request("k", "{}")).replayed())
	})
}

func TestExpiredIsAsIfThereWereNone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		runs := &charges{}
		h := newFixture(t, nil, func(c *idempotency.Config) { c.TTL = time.Hour }).Handler(runs)
		call(h, request("k", "{}"))
		time.Sleep(time.Hour - time.Nanosecond)
		require.True(t, call(h, request("k", "{}")).replayed())
		time.Sleep(time.Nanosecond)
		a := call(h, request("k", "another"))
		require.Equal(t, http.StatusCreated, a.Status)
		require.False(t, a.replayed())
		require.EqualValues(t, 2, runs.Load())
	})
}

func TestDefaultTTLIsADay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newFixture(t, nil).Handler(&charges{})
		call(h, request("k", "{}"))
		time.Sleep(24*time.Hour - time.Nanosecond)
		require.True(t, call(h, request("k", "{}")).replayed())
		time.Sleep(time.Nanosecond)
		require.False(t, call(h, request("k", "{}")).replayed())
	})
}

// A handler that runs past the TTL keeps its key, and its record lives one TTL more.
func TestRunPastItsTTL(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h, began, finish := occupied(&charges{})
		m := newFixture(t, nil, func(c *idempotency.Config) { c.TTL, c.Lease = time.Minute, 30*time.Second }).Handler(h)
		first := make(chan answer)
		go func() { first <- call(m, request("k", "{}")) }()
		<-began
		time.Sleep(3 * time.Minute)
		requireProblem(t, call(m, request("k", "{}")), http.StatusConflict, "idempotency_key_in_flight")
		finish()
		require.Equal(t, http.StatusCreated, (<-first).Status)
		time.Sleep(time.Minute - time.Nanosecond)
		require.True(t, call(m, request("k", "{}")).replayed())
	})
}

func TestAnotherRequestUnderACompletedKey(t *testing.T) {
	onEachProtocol(t, func(t *testing.T, listen listenFunc) {
		h := &charges{}
		f := newFixture(t, nil, func(c *idempotency.Config) { c.Endpoint = func(*http.Request) string { return "charge" } })
		p := listen(f.Handler(h))
		p.post(t, "k", `{"amount":1}`, "Content-Type", "application/json")
		change := map[string]func(*http.Request){
			"method":     func(r *http.Request) { r.Method = http.MethodPatch },
			"path":       func(r *http.Request) { r.URL.Path = "/charge" },
			"escaping":   func(r *http.Request) { r.URL.Path, r.URL.RawPath = "/charges", "/%63harges" },
			"query":      func(r *http.Request) { r.URL.RawQuery = "a=1" },
			"media type": func(r *http.Request) { r.Header.Set("Content-Type", "text/plain") },
		}
		for name, change := range change {
			a := request("k", `{"amount":1}`, "Content-Type", "application/json")
			change(a)
			r := p.request(t, "k", a.Body)
			r.Method, r.Header, r.ContentLength = a.Method, a.Header, a.ContentLength
			r.URL.Path, r.URL.RawPath, r.URL.RawQuery = a.URL.Path, a.URL.RawPath, a.URL.RawQuery
			got, err := p.do(r)
			require.NoError(t, err)
			require.Equal(t, http.StatusUnprocessableEntity, got.Status, name)
			requireProblem(t, got, http.StatusUnprocessableEntity, "idempotency_key_reused")
		}
		for _, body := range []string{`{"amount":2}`, "", `{"amount":1} `} {
			requireProblem(t, p.post(t, "k", body, "Content-Type", "application/json"), http.StatusUnprocessableEntity, "idempotency_key_reused")
		}
		a := p.post(t, "k", `{"amount":1}`, "Content-Type", "Application/JSON; charset=utf-8")
		require.True(t, a.replayed(), "the record is untouched, parameters and case do not count")
		require.EqualValues(t, 1, h.Load())
	})
}
