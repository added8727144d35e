package idempotency_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency"
)

// A handler that is wrapped twice does not run, and says so from the first request on:
// the inner refusal is not recorded as the outcome of the key.
func TestWrappedTwice(t *testing.T) {
	for name, wrap := range map[string]func(t *testing.T, f *fixture, h http.Handler) http.Handler{
		"by one middleware": func(_ *testing.T, f *fixture, h http.Handler) http.Handler {
			return f.Handler(f.Handler(h))
		},
		"by two with one scope": func(t *testing.T, f *fixture, h http.Handler) http.Handler {
			inner := newFixture(t, f.store, func(c *idempotency.Config) {
				c.Fingerprint = idempotency.FingerprintJSON
				c.Observe = func(_ context.Context, e idempotency.Event) { f.events <- e }
				c.Logger = slog.New(slog.NewJSONHandler(f.logs, nil))
			})
			return f.Handler(inner.Handler(h))
		},
		"with layers between": func(_ *testing.T, f *fixture, h http.Handler) http.Handler {
			mux := http.NewServeMux()
			mux.Handle("POST /charges", f.Handler(h))
			return f.Handler(outerLayer(mux))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, store := &charges{}, newFaultStore("Reserve")
			f := newFixture(t, store)
			wrapped := wrap(t, f, h)
			for range 2 {
				requireProblem(t, call(wrapped, request(secretKey, "{}")), http.StatusInternalServerError, "internal_error")
				inner, outer := f.event(t), f.event(t)
				require.Equal(t, idempotency.Rejected, inner.Outcome)
				require.Equal(t, http.StatusInternalServerError, inner.Status)
				require.ErrorContains(t, inner.Err, "wrapped twice")
				require.Equal(t, idempotency.Released, outer.Outcome)
			}
			require.Zero(t, h.Load())
			require.Len(t, store.called("Reserve"), 2, "by the outer one alone")
			require.Len(t, store.called("Release"), 2)
			require.Empty(t, store.called("Complete"))
			require.Contains(t, f.logs.String(), `"level":"ERROR"`)
			require.Contains(t, f.logs.String(), "wrapped twice")
			require.NotContains(t, f.logs.String(), secretKey)
		})
	}
}

// forward sends a request of the handler's own to h, in the same process and on the
// handler's context.
func forward(h http.Handler, path, key string, status *int) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		inner := httptest.NewRequestWithContext(r.Context(), http.MethodPost, path, strings.NewReader("{}"))
		inner.Header.Set("Idempotency-Key", key)
		a := call(h, inner)
		*status = a.Status
		io.WriteString(w, a.Body)
	})
}

// A protected handler may call another operation in its own process, or its own under
// another key.
func TestProtectedHandlerCallsAnother(t *testing.T) {
	t.Parallel()
	for _, target := range []struct{ path, key string }{{"/refunds", "k"}, {"/charges", "k2"}} {
		h := &charges{}
		f := newFixture(t, nil)
		var status int
		outer := f.Handler(forward(f.Handler(h), target.path, target.key, &status))
		a := call(outer, request("k", "{}"))
		require.Equal(t, http.StatusCreated, status, target)
		require.Equal(t, http.StatusOK, a.Status)
		require.Equal(t, `{"charge":1}`, a.Body)
		require.True(t, call(outer, request("k", "{}")).replayed())
		require.EqualValues(t, 1, h.Load())
	}
}

// Where one key counts for all operations, such a call is another use of the key. It does
// not free the key of a run that may have had effects.
func TestProtectedHandlerCallsAnotherUnderItsOwnKey(t *testing.T) {
	t.Parallel()
	h := &charges{}
	f := newFixture(t, nil, func(c *idempotency.Config) { c.Endpoint = idempotency.AnyEndpoint })
	var status int
	outer := f.Handler(forward(f.Handler(h), "/refunds", "k", &status))
	call(outer, request("k", "{}"))
	require.Equal(t, http.StatusUnprocessableEntity, status)
	require.True(t, call(outer, request("k", "{}")).replayed())
	require.Zero(t, h.Load())
}

// What a handler leaves behind may send its request again: the record answers.
func TestCallUnderAnAttemptThatIsOver(t *testing.T) {
	t.Parallel()
	h := &charges{}
	var ctx context.Context
	f := newFixture(t, nil).Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx = context.WithoutCancel(r.Context())
		h.ServeHTTP(w, r)
	}))
	call(f, request("k", "{}"))
	require.True(t, call(f, request("k", "{}").WithContext(ctx)).replayed())
}
