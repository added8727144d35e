package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency"
)

// till is a handler that counts how often it ran for each body.
type till struct {
	mu   sync.Mutex
	runs map[string]int
}

func (c *till) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.runs == nil {
		c.runs = make(map[string]int)
	}
	c.runs[string(body)]++
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, "charged %s", body)
}

// protect serves next on loopback behind the middleware.
func protect(t *testing.T, http2 bool, cfg idempotency.Config, next http.Handler) *wireServer {
	t.Helper()
	cfg.Tenant = idempotency.SingleTenant
	m, err := idempotency.New(new(idempotency.MemoryStore), cfg)
	require.NoError(t, err)
	protected := m.Handler(next)
	return serveWire(t, http2, func(_ int, w http.ResponseWriter, r *http.Request) { protected.ServeHTTP(w, r) })
}

// losing serves a proxy to backend that loses the nth response, from 1, if lose(n): the
// backend has answered, the client's connection (HTTP/1) or stream (HTTP/2) breaks.
func losing(t *testing.T, backend *wireServer, http2 bool, lose func(n int) bool) *wireServer {
	t.Helper()
	target, err := url.Parse(backend.URL)
	require.NoError(t, err)
	return serveWire(t, http2, func(n int, w http.ResponseWriter, r *http.Request) {
		proxy := &httputil.ReverseProxy{
			Transport: backend.base,
			Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(target) },
			ModifyResponse: func(*http.Response) error {
				if lose(n) {
					return errors.New("lost")
				}
				return nil
			},
			ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
		}
		proxy.ServeHTTP(w, r)
	})
}

func TestTransportAndMiddlewareChargeOnce(t *testing.T) {
	both(t, func(t *testing.T, http2 bool) {
		for _, quoted := range []bool{false, true} {
			shop := new(till)
			backend := protect(t, http2, idempotency.Config{StrictKey: quoted}, shop)
			proxy := losing(t, backend, http2, func(n int) bool { return n <= 3 })
			tr := quick(proxy.base)
			tr.Quoted = quoted

			resp, err := (&http.Client{Transport: tr}).Post(proxy.URL, "text/plain", strings.NewReader("order 1"))
			require.NoError(t, err)
			defer resp.Body.Close()
			text, err := io.ReadAll(resp.Body)
			require.NoError(t, err)
			assert.Equal(t, 201, resp.StatusCode)
			assert.Equal(t, "charged order 1", string(text))
			assert.Equal(t, "true", resp.Header.Get("Idempotent-Replayed"))
			assert.Equal(t, map[string]int{"order 1": 1}, shop.runs)
			keys, _ := backend.seen()
			assert.Len(t, keys, 4)
		}
	})
}

func TestTransportAndMiddlewareChargeEachOperationOnce(t *testing.T) {
	both(t, func(t *testing.T, http2 bool) {
		shop := new(till)
		backend := protect(t, http2, idempotency.Config{}, shop)
		proxy := losing(t, backend, http2, func(n int) bool { return n%3 != 0 })
		tr := quick(proxy.base)
		tr.MaxAttempts, tr.RetryRatio = 1000, -1
		client := &http.Client{Transport: tr}

		var wg sync.WaitGroup
		want := make(map[string]int)
		for i := range 40 {
			order := fmt.Sprintf("order %d", i)
			want[order] = 1
			wg.Go(func() {
				resp, err := client.Post(proxy.URL, "text/plain", strings.NewReader(order))
				if !assert.NoError(t, err) {
					return
				}
				defer resp.Body.Close()
				text, err := io.ReadAll(resp.Body)
				assert.NoError(t, err)
				assert.Equal(t, "charged "+order, string(text))
			})
		}
		wg.Wait()
		assert.Equal(t, want, shop.runs)
	})
}

// The connection breaks while the handler runs. The retry is told to come back when
// the lease is over, and then gets the response of the run that nobody stopped.
func TestTransportComesBackForARunInFlight(t *testing.T) {
	both(t, func(t *testing.T, http2 bool) {
		conflict, running := make(chan struct{}), make(chan struct{})
		shop := new(till)
		backend := protect(t, http2, idempotency.Config{
			Lease: time.Second,
			Observe: func(_ context.Context, e idempotency.Event) {
				if e.Outcome == idempotency.Conflict {
					close(conflict)
				}
			},
		}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			close(running)
			<-conflict
			shop.ServeHTTP(w, r)
		}))
		// The first attempt breaks off when the handler has begun.
		attempts := 0
		base := roundTripFunc(func(r *http.Request) (*http.Response, error) {
			if attempts++; attempts > 1 {
				return backend.base.RoundTrip(r)
			}
			ctx, cut := context.WithCancel(r.Context())
			defer cut()
			go func() {
				<-running
				cut()
			}()
			return backend.base.RoundTrip(r.WithContext(ctx))
		})
		resp, err := (&http.Client{Transport: quick(base)}).Post(backend.URL, "text/plain", strings.NewReader("order 1"))
		require.NoError(t, err)
		defer resp.Body.Close()
		assert.Equal(t, 201, resp.StatusCode)
		assert.Equal(t, "true", resp.Header.Get("Idempotent-Replayed"))
		assert.Equal(t, 3, attempts)
		assert.Equal(t, map[string]int{"order 1": 1}, shop.runs)
	})
}

// A recorded failure is the answer for good: a retry would only meet it again.
func TestTransportTakesAReplayedFailureAsFinal(t *testing.T) {
	t.Parallel()
	runs := 0
	backend := protect(t, false, idempotency.Config{}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		runs++
		w.Header().Set("Retry-After", "1")
		http.Error(w, "bank closed", http.StatusServiceUnavailable)
	}))
	resp, err := (&http.Client{Transport: quick(backend.base)}).Post(backend.URL, "text/plain", strings.NewReader("order 1"))
	require.NoError(t, err)
	resp.Body.Close()
	keys, _ := backend.seen()
	assert.Equal(t, 503, resp.StatusCode)
	assert.Len(t, keys, 2, "the failure and its replay")
	assert.Equal(t, 1, runs)
}
