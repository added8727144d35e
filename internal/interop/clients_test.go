package interop

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-retryablehttp"
	"github.com/stretchr/testify/require"
	"github.com/stripe/stripe-go/v85"

	"github.com/seed-2d1e5f61/idempotency"
)

const operations = 5

// firstTwoOfThree loses two responses of each operation.
func firstTwoOfThree(n int64) bool { return n%3 != 0 }

// stripe-go makes the keys and the retries itself, and sends forms.
func TestStripeGo(t *testing.T) {
	t.Parallel()
	s := startService(t, firstTwoOfThree)
	backend := stripe.GetBackendWithConfig(stripe.APIBackend, &stripe.BackendConfig{
		URL:               stripe.String(s.lossy),
		MaxNetworkRetries: stripe.Int64(3),
		LeveledLogger:     &stripe.LeveledLogger{Level: stripe.LevelNull},
	})
	backend.(*stripe.BackendImplementation).SetNetworkRetriesSleep(false)
	client := stripe.NewClient(apiKey, stripe.WithBackends(&stripe.Backends{API: backend}))

	ids := make(map[string]bool)
	for range operations {
		params := &stripe.ChargeCreateParams{Amount: stripe.Int64(1200), Currency: stripe.String("jpy")}
		require.NoError(t, params.SetSource("tok_visa"))
		charge, err := client.V1Charges.Create(t.Context(), params)
		require.NoError(t, err)
		require.EqualValues(t, 1200, charge.Amount)
		require.EqualValues(t, "succeeded", charge.Status)
		ids[charge.ID] = true
	}
	require.Len(t, ids, operations)
	require.EqualValues(t, 3*operations, s.requests.Load())
	require.Equal(t, operations, s.charges())
}

// go-retryablehttp retries what it is given: the key is the caller's.
func TestRetryableHTTP(t *testing.T) {
	t.Parallel()
	s := startService(t, firstTwoOfThree)
	client := retryablehttp.NewClient()
	client.RetryMax, client.RetryWaitMin, client.RetryWaitMax = 3, time.Millisecond, 10*time.Millisecond
	client.Logger = nil
	for range operations {
		r, err := retryablehttp.NewRequestWithContext(t.Context(), http.MethodPost, s.lossy+"/v1/charges",
			strings.NewReader(`{"amount":1200,"currency":"jpy","source":"tok_visa"}`))
		require.NoError(t, err)
		r.Header.Set("Authorization", "Bearer "+apiKey)
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Idempotency-Key", idempotency.NewKey())
		resp, err := client.Do(r)
		require.NoError(t, err)
		resp.Body.Close()
		require.Equal(t, http.StatusCreated, resp.StatusCode)
		require.Equal(t, "true", resp.Header.Get("Idempotent-Replayed"))
	}
	require.EqualValues(t, 3*operations, s.requests.Load())
	require.Equal(t, operations, s.charges())
}

// net/http sends a request with a key again by itself when a connection that it had kept
// alive dies before the first byte of the response.
func TestNetHTTPResendsByItself(t *testing.T) {
	t.Parallel()
	lose := func(n int64) bool { return n == 2 } // the second request's, on the kept connection
	s := startService(t, lose)
	var connections atomic.Int64
	transport := &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		connections.Add(1)
		return new(net.Dialer).DialContext(ctx, network, addr)
	}}
	defer transport.CloseIdleConnections()
	for n := range 2 {
		reused := false
		trace := &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) { reused = reused || info.Reused }}
		r, err := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), trace), http.MethodPost, s.lossy+"/v1/charges",
			strings.NewReader(`{"amount":1200,"currency":"jpy","source":"tok_visa"}`))
		require.NoError(t, err)
		r.Header.Set("Authorization", "Bearer "+apiKey)
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Idempotency-Key", idempotency.NewKey())
		resp, err := transport.RoundTrip(r)
		require.NoError(t, err)
		io.Copy(io.Discard, resp.Body) // or the connection is not kept
		resp.Body.Close()
		require.Equal(t, n == 1, reused)
		require.Equal(t, http.StatusCreated, resp.StatusCode)
		require.Equal(t, n == 1, resp.Header.Get("Idempotent-Replayed") == "true")
	}
	require.EqualValues(t, 2, connections.Load())
	require.EqualValues(t, 3, s.requests.Load(), "one was sent twice")
	require.Equal(t, 2, s.charges())
}

// And the library's own.
func TestTransport(t *testing.T) {
	t.Parallel()
	s := startService(t, firstTwoOfThree)
	client := &http.Client{Transport: &idempotency.Transport{MinBackoff: time.Millisecond}}
	for range operations {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.lossy+"/v1/charges",
			strings.NewReader(`{"amount":1200,"currency":"jpy","source":"tok_visa"}`))
		require.NoError(t, err)
		r.Header.Set("Authorization", "Bearer "+apiKey)
		r.Header.Set("Content-Type", "application/json")
		resp, err := client.Do(r)
		require.NoError(t, err)
		resp.Body.Close()
		require.Equal(t, http.StatusCreated, resp.StatusCode)
	}
	require.Equal(t, operations, s.charges())
}
