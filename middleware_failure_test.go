package idempotency_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"runtime"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency"
)

// The client leaves while the handler runs: nothing stops, and its retry meets the
// outcome.
func TestClientLeavesWhileTheHandlerRuns(t *testing.T) {
	onEachProtocol(t, func(t *testing.T, listen listenFunc) {
		outer := make(chan context.Context, 1)
		h, began, finish := occupied(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			assert.NoError(t, r.Context().Err(), "the handler was stopped")
			w.WriteHeader(http.StatusCreated)
			io.WriteString(w, "charged")
		}))
		f := newFixture(t, nil)
		m := f.Handler(h)
		p := listen(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			select {
			case outer <- r.Context():
			default:
			}
			m.ServeHTTP(w, r)
		}))
		ctx, leave := context.WithCancel(t.Context())
		left := make(chan error)
		go func() {
			_, err := p.do(p.request(t, "k", strings.NewReader("{}")).WithContext(ctx))
			left <- err
		}()
		closed(t, began)
		leave()
		require.ErrorIs(t, <-left, context.Canceled)
		closed(t, (<-outer).Done()) // the server knows
		finish()
		require.Equal(t, idempotency.Executed, f.event(t).Outcome)
		a := p.post(t, "k", "{}")
		require.Equal(t, http.StatusCreated, a.Status)
		require.Equal(t, "charged", a.Body)
		require.True(t, a.replayed())
	})
}

// A layer outside that gives up on a handler is a client that leaves.
func TestTimeoutHandlerOutside(t *testing.T) {
	onEachProtocol(t, func(t *testing.T, listen listenFunc) {
		h, _, finish := occupied(&charges{})
		f := newFixture(t, nil)
		p := listen(http.TimeoutHandler(f.Handler(h), 20*time.Millisecond, "too slow"))
		a := p.post(t, "k", "{}")
		require.Equal(t, http.StatusServiceUnavailable, a.Status)
		require.Equal(t, "too slow", a.Body)
		finish()
		require.Equal(t, idempotency.Executed, f.event(t).Outcome)
		a = call(f.Handler(h), request("k", "{}"))
		require.Equal(t, http.StatusCreated, a.Status)
		require.True(t, a.replayed())
	})
}

// If the client is gone before the reserve, nothing is reserved.
func TestClientGoneBeforeTheReserve(t *testing.T) {
	t.Parallel()
	store, h := newFaultStore("Reserve"), &charges{}
	f := newFixture(t, store)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	a := call(f.Handler(h), request("k", "{}").WithContext(ctx))
	requireProblem(t, a, http.StatusServiceUnavailable, "idempotency_unavailable")
	require.NoError(t, f.Drain(t.Context()))
	require.Zero(t, h.Load())
	require.Empty(t, store.called())
	e := f.event(t)
	require.Equal(t, idempotency.Rejected, e.Outcome)
	require.Zero(t, e.Status)
	require.ErrorIs(t, e.Err, context.Canceled)
}

// A request's context may end without its client: by an outer layer, or with the server's
// BaseContext at shutdown. An answer left out would be an empty 200, for nothing.
func TestContextThatEndsBeforeTheClientLeaves(t *testing.T) {
	onEachProtocol(t, func(t *testing.T, listen listenFunc) {
		base, shutdown := context.WithCancel(t.Context())
		runs, store := &charges{}, newFaultStore("Reserve")
		h := newFixture(t, store, waits(guard)).Handler(runs)
		p := listen(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ctx, cancel := context.WithCancel(r.Context())
			switch r.Header.Get("End") {
			case "cancelled":
				cancel()
			case "deadline":
				ctx, cancel = context.WithDeadline(ctx, time.Now())
			}
			defer cancel()
			h.ServeHTTP(w, r.WithContext(ctx))
		}), func(s *http.Server) { s.BaseContext = func(net.Listener) context.Context { return base } })
		for _, end := range []string{"cancelled", "deadline"} {
			a := p.post(t, "k", "{}", "End", end)
			requireProblem(t, a, http.StatusServiceUnavailable, "idempotency_unavailable")
			require.Equal(t, "1", a.Header.Get("Retry-After"))
		}
		require.Empty(t, store.called())

		reserveElsewhere(t, store, "k", "{}", time.Minute, time.Hour)
		store.on("Reserve", func(_ context.Context, do func() error) error { shutdown(); return do() })
		a := p.post(t, "k", "{}")
		requireProblem(t, a, http.StatusConflict, "idempotency_key_in_flight")
		require.NotEmpty(t, a.Header.Get("Retry-After"))
		require.Zero(t, runs.Load())
	})
}

// A client that leaves during the reserve does not cut it off. If the store answers, the
// handler runs and the retry is a replay; if it does not, nothing runs.
func TestClientLeavesDuringTheReserve(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err     error
		outcome idempotency.Outcome
		status  int
		runs    int64
	}{
		"the store answers": {nil, idempotency.Executed, 201, 1},
		"the store fails":   {errDown, idempotency.Rejected, 503, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, leave := context.WithCancel(t.Context())
			store, h := newFaultStore("Reserve", func(ctx context.Context, do func() error) error {
				leave()
				require.NoError(t, ctx.Err(), "the statement is cut off")
				_ = do()
				return c.err
			}, works), &charges{}
			f := newFixture(t, store, func(c *idempotency.Config) { c.FailOpen = true })
			m := f.Handler(h)
			first := call(m, request("k", "{}").WithContext(ctx))
			require.Equal(t, c.status, first.Status)
			require.EqualValues(t, c.runs, h.Load())
			e := f.event(t)
			require.Equal(t, c.outcome, e.Outcome)
			require.NoError(t, f.Drain(t.Context()))
			again := call(m, request("k", "{}"))
			require.Equal(t, http.StatusCreated, again.Status, "its claim was not freed")
			require.Equal(t, c.err == nil, again.replayed())
		})
	}
}

func TestReleaseFreesTheKey(t *testing.T) {
	onEachProtocol(t, func(t *testing.T, listen listenFunc) {
		var runs atomic.Int64
		f := newFixture(t, nil)
		p := listen(f.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if runs.Add(1) == 1 {
				idempotency.FromContext(r.Context()).Release()
				http.Error(w, "amount must be positive", http.StatusBadRequest)
				return
			}
			assert.Equal(t, 1, idempotency.FromContext(r.Context()).Number(), "a fresh run")
			io.WriteString(w, "charged")
		})))
		a := p.post(t, "k", "-1")
		require.Equal(t, http.StatusBadRequest, a.Status)
		require.Equal(t, "amount must be positive\n", a.Body)
		require.Equal(t, idempotency.Released, f.event(t).Outcome)
		a = p.post(t, "k", "1")
		require.Equal(t, "charged", a.Body)
		require.False(t, a.replayed())
	})
}

// endings are the ways in which a handler does not return.
var endings = map[string]func(){
	"panic":           func() { panic("boom") },
	"panic(nil)":      func() { panic(nil) },
	"ErrAbortHandler": func() { panic(http.ErrAbortHandler) },
	"Goexit":          runtime.Goexit,
}

// A handler that does not return is settled as a 500, also against its own Release: a
// key that is freed by accident runs twice within one call of Go's Transport.
func TestPanicIsRecordedAs500(t *testing.T) {
	onEachProtocol(t, func(t *testing.T, listen listenFunc) {
		for name, end := range endings {
			t.Run(name, func(t *testing.T) {
				var runs atomic.Int64
				f := newFixture(t, nil)
				p := listen(f.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					runs.Add(1)
					idempotency.FromContext(r.Context()).Release()
					w.Header().Set("Location", "/charges/1")
					w.WriteHeader(http.StatusCreated)
					io.WriteString(w, "half a resp")
					end()
				})))
				_, err := p.do(p.request(t, "k", strings.NewReader("{}")))
				require.Error(t, err, "a new connection, so nothing is sent again")
				require.Equal(t, idempotency.Executed, f.event(t).Outcome)
				a := p.post(t, "k", "{}")
				require.Equal(t, http.StatusInternalServerError, a.Status)
				require.True(t, a.replayed())
				require.Empty(t, a.Body, "half a response is none")
				require.NotContains(t, a.Header, "Location")
				require.EqualValues(t, 1, runs.Load())
			})
		}
	})
}

func TestPanicWithoutKeepFreesTheKey(t *testing.T) {
	onEachProtocol(t, func(t *testing.T, listen listenFunc) {
		var runs atomic.Int64
		f := newFixture(t, nil, func(c *idempotency.Config) { c.Keep = func(status int) bool { return status < 500 } })
		p := listen(f.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if runs.Add(1) == 1 {
				panic(http.ErrAbortHandler)
			}
			io.WriteString(w, "charged")
		})))
		_, err := p.do(p.request(t, "k", strings.NewReader("{}")))
		require.Error(t, err)
		require.Equal(t, idempotency.Released, f.event(t).Outcome)
		a := p.post(t, "k", "{}")
		require.Equal(t, "charged", a.Body)
		require.False(t, a.replayed())
	})
}

// The outcome is settled before the panic goes on, and the panic's stack is the
// handler's.
func TestPanicGoesOnAfterItIsSettled(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	h := f.Handler(http.HandlerFunc(panickyHandler))
	defer func() {
		require.Equal(t, "boom", recover())
		require.Contains(t, string(debug.Stack()), "panickyHandler", "the stack was cut")
		e := f.event(t)
		require.Equal(t, idempotency.Executed, e.Outcome)
		require.Equal(t, http.StatusInternalServerError, e.Status)
		require.Error(t, e.Err)
		require.True(t, call(h, request("k", "{}")).replayed())
	}()
	call(h, request("k", "{}"))
	t.Error("the panic was swallowed")
}

func panickyHandler(http.ResponseWriter, *http.Request) { panic("boom") }

// A recoverer outside answers the client of a panic as it likes.
func TestRecovererOutside(t *testing.T) {
	onEachProtocol(t, func(t *testing.T, listen listenFunc) {
		m := newFixture(t, nil).Handler(http.HandlerFunc(panickyHandler))
		p := listen(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer func() {
				if recover() != nil {
					http.Error(w, "sorry", http.StatusInternalServerError)
				}
			}()
			m.ServeHTTP(w, r)
		}))
		a := p.post(t, "k", "{}")
		require.Equal(t, "sorry\n", a.Body)
		a = p.post(t, "k", "{}")
		require.Equal(t, http.StatusInternalServerError, a.Status)
		require.True(t, a.replayed())
	})
}

// Go's Transport sends a request with an Idempotency-Key again, by itself, when a used
// connection dies under it. The handler must not run twice within that one call.
func TestTransportResendsByItself(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	p := listen(t, false, newFixture(t, nil).Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Die") != "" {
			runs.Add(1)
			panic(http.ErrAbortHandler)
		}
	})))
	require.Equal(t, http.StatusOK, p.post(t, "warm-up", "{}").Status)
	a := p.post(t, "k", "{}", "Die", "yes")
	require.Equal(t, http.StatusInternalServerError, a.Status)
	require.True(t, a.replayed(), "the answer to the second time that it was sent")
	require.EqualValues(t, 1, runs.Load())
}

// However the client's and the handler's contexts end, the record is written, on a
// context that has not ended and keeps their values.
func TestStoreCallsUseAContextOfTheirOwn(t *testing.T) {
	t.Parallel()
	type valueKey struct{}
	for _, keep := range []bool{true, false} {
		store := newFaultStore("Reserve")
		store.on("Complete", func(ctx context.Context, do func() error) error { return errors.Join(ctx.Err(), do()) })
		store.on("Release", func(ctx context.Context, do func() error) error { return errors.Join(ctx.Err(), do()) })
		f := newFixture(t, store, func(c *idempotency.Config) { c.Keep = func(int) bool { return keep } })
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), valueKey{}, "trace"))
		call(f.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			assert.Equal(t, "trace", r.Context().Value(valueKey{}))
			assert.NotNil(t, idempotency.FromContext(r.Context()))
			_, hasDeadline := r.Context().Deadline()
			assert.False(t, hasDeadline)
			cancel()
			assert.NoError(t, r.Context().Err())
		})), request("k", "{}").WithContext(ctx))
		require.NoError(t, f.event(t).Err)
		settling := store.called("Complete", "Release")
		require.Len(t, settling, 1, "the first try was good")
		require.Equal(t, "trace", settling[0].ctx.Value(valueKey{}))
		deadline, ok := settling[0].ctx.Deadline()
		require.True(t, ok)
		require.WithinDuration(t, time.Now(), deadline, 5*time.Second)
	}
}
