package idempotency_test

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency"
)

// wireServer serves handler on loopback, over HTTP/1 or unencrypted HTTP/2, and
// remembers what arrived. handler gets the number of the request, from 1.
type wireServer struct {
	*httptest.Server
	base  *http.Transport // of a client that speaks the protocol
	conns atomic.Int32

	mu     sync.Mutex
	keys   []string
	bodies []string
}

func serveWire(t *testing.T, http2 bool, handler func(n int, w http.ResponseWriter, r *http.Request)) *wireServer {
	t.Helper()
	s := &wireServer{}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		assert.Equal(t, http2, r.ProtoMajor == 2)
		body, _ := io.ReadAll(r.Body) // a body that breaks off is short
		s.mu.Lock()
		s.keys = append(s.keys, strings.Join(r.Header.Values("Idempotency-Key"), " and "))
		s.bodies = append(s.bodies, string(body))
		n := len(s.keys)
		s.mu.Unlock()
		r.Body = io.NopCloser(bytes.NewReader(body))
		handler(n, w, r)
	}))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			s.conns.Add(1)
		}
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(!http2)
	protocols.SetUnencryptedHTTP2(http2)
	s.Config.Protocols = protocols
	s.base = &http.Transport{Protocols: protocols}
	s.Start()
	t.Cleanup(func() {
		s.base.CloseIdleConnections()
		s.Close()
	})
	return s
}

// seen returns the keys and bodies that have arrived.
func (s *wireServer) seen() (keys, bodies []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.keys), slices.Clone(s.bodies)
}

// both runs test over HTTP/1 and HTTP/2.
func both(t *testing.T, test func(t *testing.T, http2 bool)) {
	t.Parallel()
	for name, http2 := range map[string]bool{"HTTP/1": false, "HTTP/2": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, http2)
		})
	}
}

func TestTransportOverTheWire(t *testing.T) {
	both(t, func(t *testing.T, http2 bool) {
		s := serveWire(t, http2, func(n int, w http.ResponseWriter, _ *http.Request) {
			switch n {
			case 1: // the response is lost
				panic(http.ErrAbortHandler)
			case 2:
				http.Error(w, "busy", http.StatusServiceUnavailable)
			case 3:
				w.Header().Set("Retry-After", "0")
				http.Error(w, "in flight", http.StatusConflict)
			default:
				w.WriteHeader(http.StatusCreated)
				io.WriteString(w, "charged")
			}
		})
		client := &http.Client{Transport: quick(s.base)}
		resp, err := client.Post(s.URL, "application/json", strings.NewReader(`{"amount":1200}`))
		require.NoError(t, err)
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		assert.Equal(t, "charged", string(text))
		keys, bodies := s.seen()
		assert.Len(t, keys, 4)
		assert.Equal(t, []string{resp.Request.Header.Get("Idempotency-Key")}, slices.Compact(keys))
		assert.Equal(t, []string{`{"amount":1200}`}, slices.Compact(bodies))
	})
}

func TestTransportSendsAnUnknownLengthOverTheWire(t *testing.T) {
	both(t, func(t *testing.T, http2 bool) {
		for size, attempts := range map[int]int{1000: 3, 1<<20 + 1: 1} {
			s := serveWire(t, http2, func(n int, w http.ResponseWriter, r *http.Request) {
				assert.Equal(t, int64(-1), r.ContentLength)
				assert.Equal(t, "sum", r.Trailer.Get("X-Checksum"))
				if n < 3 {
					w.WriteHeader(http.StatusServiceUnavailable)
				}
			})
			want := strings.Repeat("x", size)
			req := post(t, t.Context(), nil)
			req.URL.Host = s.Listener.Addr().String()
			req.Trailer = http.Header{"X-Checksum": nil}
			body := &trackedBody{Reader: io.MultiReader(strings.NewReader(want), trailerAtEOF{req})}
			req.Body, req.ContentLength = body, -1
			resp, err := (&http.Client{Transport: quick(s.base)}).Do(req)
			require.NoError(t, err)
			resp.Body.Close()
			keys, bodies := s.seen()
			assert.Len(t, bodies, attempts)
			assert.True(t, slices.Equal([]string{want}, slices.Compact(bodies)))
			assert.Len(t, slices.Compact(keys), 1)
		}
	})
}

// trailerAtEOF fills in a trailer once the body in front of it has been read.
type trailerAtEOF struct{ req *http.Request }

func (t trailerAtEOF) Read([]byte) (int, error) {
	t.req.Trailer.Set("X-Checksum", "sum")
	return 0, io.EOF
}

func TestTransportReusesTheConnectionOfAnAbandonedResponse(t *testing.T) {
	both(t, func(t *testing.T, http2 bool) {
		s := serveWire(t, http2, func(n int, w http.ResponseWriter, _ *http.Request) {
			if n < 4 {
				w.WriteHeader(http.StatusServiceUnavailable)
				io.WriteString(w, strings.Repeat("x", 60<<10))
			}
		})
		resp, err := (&http.Client{Transport: quick(s.base)}).Post(s.URL, "text/plain", nil)
		require.NoError(t, err)
		resp.Body.Close()
		assert.Equal(t, 200, resp.StatusCode)
		assert.EqualValues(t, 1, s.conns.Load(), "connections")
	})
}

// net/http resends a request by itself if the connection turns out to be dead: under
// the same key, with the whole body, within one attempt of Transport.
func TestTransportLetsNetHTTPResend(t *testing.T) {
	t.Parallel()
	for _, body := range []func() io.Reader{
		func() io.Reader { return nil },
		func() io.Reader { return strings.NewReader("amount=1200") },
		func() io.Reader { return &trackedBody{Reader: strings.NewReader("amount=1200")} },
	} {
		for header, resent := range map[string]bool{"": true, "idempotency-key": true, "x-idempotency-key": true, "X-Charge-Token": false} {
			s := serveWire(t, false, func(n int, w http.ResponseWriter, _ *http.Request) {
				if n == 2 {
					conn, _, err := w.(http.Hijacker).Hijack()
					if assert.NoError(t, err) {
						conn.Close()
					}
				}
			})
			client := &http.Client{Transport: &idempotency.Transport{Base: s.base, Header: header, MaxAttempts: 1}}
			warm, err := client.Get(s.URL)
			require.NoError(t, err)
			warm.Body.Close()
			resp, err := client.Post(s.URL, "text/plain", body())
			keys, bodies := s.seen()
			if !resent {
				require.Error(t, err, header)
				assert.Len(t, keys, 2, header)
				continue
			}
			require.NoError(t, err, header)
			resp.Body.Close()
			require.Len(t, keys, 3, header)
			assert.Equal(t, keys[1], keys[2], header)
			assert.Equal(t, bodies[1], bodies[2], header)
		}
	}
}

// A server that took the request and fell silent is met by ResponseHeaderTimeout.
func TestTransportRetriesALostResponse(t *testing.T) {
	both(t, func(t *testing.T, http2 bool) {
		s := serveWire(t, http2, func(n int, w http.ResponseWriter, r *http.Request) {
			if n == 1 {
				<-r.Context().Done()
			}
		})
		s.base.ResponseHeaderTimeout = 100 * time.Millisecond
		resp, err := (&http.Client{Transport: quick(s.base)}).Post(s.URL, "text/plain", strings.NewReader("x"))
		require.NoError(t, err)
		resp.Body.Close()
		keys, _ := s.seen()
		assert.GreaterOrEqual(t, len(keys), 2)
		assert.Len(t, slices.Compact(keys), 1)
	})
}

func TestTransportFollowsARedirectUnderTheKeyOfTheContext(t *testing.T) {
	t.Parallel()
	s := serveWire(t, false, func(n int, w http.ResponseWriter, r *http.Request) {
		if n == 1 {
			http.Redirect(w, r, "/v2", http.StatusTemporaryRedirect)
		}
	})
	req, err := http.NewRequestWithContext(idempotency.WithKey(t.Context(), "order-1"), http.MethodPost, s.URL, strings.NewReader("x"))
	require.NoError(t, err)
	resp, err := (&http.Client{Transport: quick(s.base)}).Do(req)
	require.NoError(t, err)
	resp.Body.Close()
	keys, bodies := s.seen()
	assert.Equal(t, []string{"order-1", "order-1"}, keys)
	assert.Equal(t, []string{"x", "x"}, bodies)
}
