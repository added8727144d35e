package interop

import (
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"
	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency"
)

// shop has a handler for each thing that a chain of layers may get wrong.
type shop struct {
	protect *idempotency.Middleware
	runs    int
}

func newShop(t *testing.T) *shop {
	t.Helper()
	m, err := idempotency.New(new(idempotency.MemoryStore), idempotency.Config{Tenant: func(r *http.Request) (string, error) {
		tenant, _ := r.Context().Value(tenantKey{}).(string)
		return tenant, nil
	}})
	require.NoError(t, err)
	return &shop{protect: m}
}

type tenantKey struct{}

func authenticate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), tenantKey{}, "acct_1")))
	})
}

// page is long enough to be compressed.
var page = strings.Repeat("charged ", 500)

func (s *shop) charge(w http.ResponseWriter, r *http.Request) {
	s.runs++
	switch r.URL.Query().Get("do") {
	case "panic":
		panic("boom")
	case "sleep":
		time.Sleep(200 * time.Millisecond)
	}
	w.Header().Set("Content-Type", "text/plain")
	w.Header().Set("X-Request-Seen", middleware.GetReqID(r.Context()))
	w.WriteHeader(http.StatusCreated)
	io.WriteString(w, page)
}

type reply struct {
	status         int
	body, encoding string
	replayed       bool
	header         http.Header
}

// send posts without the client's own handling of gzip.
func send(t *testing.T, server *httptest.Server, key, query, accept string) reply {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+"/charges/7?"+query, strings.NewReader("{}"))
	require.NoError(t, err)
	r.Header.Set("Idempotency-Key", key)
	r.Header.Set("Accept-Encoding", accept)
	r.GetBody = nil
	resp, err := server.Client().Do(r)
	require.NoError(t, err)
	defer resp.Body.Close()
	var body io.Reader = resp.Body
	if resp.Header.Get("Content-Encoding") == "gzip" {
		body, err = gzip.NewReader(resp.Body)
		require.NoError(t, err)
	}
	text, err := io.ReadAll(body)
	require.NoError(t, err)
	return reply{resp.StatusCode, string(text), resp.Header.Get("Content-Encoding"),
		resp.Header.Get("Idempotent-Replayed") == "true", resp.Header}
}

// requestID shows the id that chi gives each request, as services do.
func requestID(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Request-Id", middleware.GetReqID(r.Context()))
		next.ServeHTTP(w, r)
	})
}

func (s *shop) chi(layers ...func(http.Handler) http.Handler) http.Handler {
	r := chi.NewRouter()
	r.Use(layers...)
	r.Post("/charges/{id}", s.charge)
	return r
}

// The orders that the README recommends.
func TestRecommendedOrders(t *testing.T) {
	t.Parallel()
	for name, build := range map[string]func(*shop) http.Handler{
		"chi, protected as a whole": func(s *shop) http.Handler {
			return s.chi(middleware.RequestID, requestID, middleware.Recoverer, middleware.Compress(5),
				middleware.Timeout(time.Minute), authenticate, s.protect.Handler)
		},
		"chi, one route protected": func(s *shop) http.Handler {
			r := chi.NewRouter()
			r.Use(middleware.RequestID, requestID, middleware.Recoverer, middleware.Compress(5), authenticate)
			r.With(s.protect.Handler).Post("/charges/{id}", s.charge)
			return r
		},
		"ServeMux": func(s *shop) http.Handler {
			mux := http.NewServeMux()
			mux.Handle("POST /charges/{id}", s.protect.Handler(http.HandlerFunc(s.charge)))
			return middleware.RequestID(requestID(middleware.Recoverer(middleware.Compress(5)(authenticate(mux)))))
		},
		"ServeMux inside": func(s *shop) http.Handler {
			mux := http.NewServeMux()
			mux.HandleFunc("POST /charges/{id}", s.charge)
			return middleware.RequestID(requestID(middleware.Recoverer(middleware.Compress(5)(authenticate(s.protect.Handler(mux))))))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShop(t)
			server := httptest.NewServer(build(s))
			defer server.Close()

			first := send(t, server, "k", "", "gzip")
			require.Equal(t, []any{201, page, "gzip", false}, []any{first.status, first.body, first.encoding, first.replayed})
			for _, accept := range []string{"gzip", "identity"} {
				again := send(t, server, "k", "", accept)
				require.Equal(t, []any{201, page, true}, []any{again.status, again.body, again.replayed})
				require.Equal(t, accept == "gzip", again.encoding == "gzip", "each client gets its own encoding")
				require.NotEmpty(t, again.header.Get("X-Request-Id"))
				require.NotEqual(t, first.header.Get("X-Request-Id"), again.header.Get("X-Request-Id"), "an outer layer's stays fresh")
				require.Equal(t, first.header.Get("Content-Type"), again.header.Get("Content-Type"))
			}
			require.Equal(t, 1, s.runs)

			crashed := send(t, server, "p", "do=panic", "identity")
			require.Equal(t, []any{500, false}, []any{crashed.status, crashed.replayed})
			again := send(t, server, "p", "do=panic", "identity")
			require.Equal(t, []any{500, true}, []any{again.status, again.replayed})
			require.Equal(t, 2, s.runs)
		})
	}
}

// A timeout outside does not stop the handler, and its outcome is recorded.
func TestTimeoutOutside(t *testing.T) {
	t.Parallel()
	for name, timeout := range map[string]func(http.Handler) http.Handler{
		"http.TimeoutHandler": func(h http.Handler) http.Handler { return http.TimeoutHandler(h, 20*time.Millisecond, "too late") },
		"chi":                 middleware.Timeout(20 * time.Millisecond),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShop(t)
			server := httptest.NewServer(timeout(s.chi(authenticate, s.protect.Handler)))
			first := send(t, server, "k", "do=sleep", "identity")
			if name == "http.TimeoutHandler" {
				require.Equal(t, http.StatusServiceUnavailable, first.status)
			}
			require.NoError(t, s.protect.Drain(t.Context()))
			again := send(t, server, "k", "do=sleep", "identity")
			require.Equal(t, []any{201, page, true}, []any{again.status, again.body, again.replayed})
			server.Close()
			require.Equal(t, 1, s.runs)
		})
	}
}

// The wrong orders that the README names do what it says.
func TestWrongOrders(t *testing.T) {
	t.Parallel()
	t.Run("Compress inside", func(t *testing.T) {
		t.Parallel()
		s := newShop(t)
		server := httptest.NewServer(s.chi(authenticate, s.protect.Handler, middleware.Compress(5)))
		defer server.Close()
		send(t, server, "k", "", "gzip")
		require.Equal(t, "gzip", send(t, server, "k", "", "identity").encoding, "one client's encoding is recorded for all")
	})
	t.Run("authentication inside", func(t *testing.T) {
		t.Parallel()
		s := newShop(t)
		server := httptest.NewServer(s.chi(s.protect.Handler, authenticate))
		defer server.Close()
		require.Equal(t, http.StatusForbidden, send(t, server, "k", "", "identity").status)
		require.Zero(t, s.runs)
	})
	t.Run("Recoverer inside", func(t *testing.T) {
		t.Parallel()
		s := newShop(t)
		server := httptest.NewServer(s.chi(authenticate, s.protect.Handler, middleware.Recoverer))
		defer server.Close()
		for _, replayed := range []bool{false, true} {
			got := send(t, server, "k", "do=panic", "identity")
			require.Equal(t, []any{500, replayed}, []any{got.status, got.replayed})
		}
		require.Equal(t, 1, s.runs)
	})
	t.Run("the body is read outside", func(t *testing.T) {
		t.Parallel()
		s := newShop(t)
		server := httptest.NewServer(s.chi(authenticate, func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				fmt.Fprint(io.Discard, len(body))
				next.ServeHTTP(w, r)
			})
		}, s.protect.Handler))
		defer server.Close()
		require.Equal(t, http.StatusInternalServerError, send(t, server, "k", "", "identity").status)
		require.Zero(t, s.runs)
	})
}
