package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency"
)

// The wrapped handler gets a copy: the server still looks at the original's body.
func TestOriginalRequestStaysAsItIs(t *testing.T) {
	onEachProtocol(t, func(t *testing.T, listen listenFunc) {
		m := newFixture(t, nil).Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			assert.Nil(t, r.GetBody)
			assert.EqualValues(t, 5, r.ContentLength)
			assert.Equal(t, "/charges", r.RequestURI)
			r.Body = nil
			r.Method = "changed"
			*r = *r.WithContext(context.Background())
		}))
		p := listen(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, ctx := r.Body, r.Context()
			m.ServeHTTP(w, r)
			assert.Same(t, body, r.Body)
			assert.Equal(t, ctx, r.Context())
			assert.Equal(t, http.MethodPost, r.Method)
			assert.Nil(t, r.GetBody)
		}))
		for range 2 {
			require.Equal(t, http.StatusOK, p.post(t, "k", "hello").Status)
		}
	})
}

// Layers outside, such as loggers, read the pattern that a router inside has found.
func TestPatternIsHandedBack(t *testing.T) {
	onEachProtocol(t, func(t *testing.T, listen listenFunc) {
		for name, change := range map[string]func(*idempotency.Config){
			"protected":   func(*idempotency.Config) {},
			"unprotected": func(c *idempotency.Config) { c.KeyOptional = true },
			"fail open":   func(c *idempotency.Config) { c.FailOpen = true },
		} {
			t.Run(name, func(t *testing.T) {
				var store idempotency.Store
				key := "k"
				switch name {
				case "unprotected":
					key = ""
				case "fail open":
					store = newFaultStore("Reserve", fullStore)
				}
				mux := http.NewServeMux()
				mux.HandleFunc("POST /{what}", func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.PathValue("what")) })
				m := newFixture(t, store, change).Handler(mux)
				patterns := make(chan string, 1)
				p := listen(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					m.ServeHTTP(w, r)
					patterns <- r.Pattern
				}))
				require.Equal(t, "charges", p.post(t, key, "{}").Body)
				require.Equal(t, "POST /{what}", <-patterns)
			})
		}
	})
}

// fullStore is refused at once, with no second try.
var fullStore fault = func(context.Context, func() error) error { return idempotency.ErrStoreFull }

// The middleware may sit inside a router: its pattern and path values reach the handler.
func TestInsideARouter(t *testing.T) {
	onEachProtocol(t, func(t *testing.T, listen listenFunc) {
		mux := http.NewServeMux()
		mux.Handle("POST /accounts/{id}/charges", newFixture(t, nil).Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprint(w, r.Pattern, " ", r.PathValue("id"))
		})))
		p := listen(mux)
		for _, id := range []string{"1", "2", "1"} {
			r := p.request(t, "k", strings.NewReader("{}"))
			r.URL.Path = "/accounts/" + id + "/charges"
			a, err := p.do(r)
			require.NoError(t, err)
			require.Equal(t, "POST /accounts/{id}/charges "+id, a.Body)
		}
	})
}

// A goroutine that reads the body after the handler returned gets an error, never
// another request's bytes: the memory serves the next request by then.
func TestLateReadOfTheBody(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(*idempotency.Config)
		store  idempotency.Store
	}{
		"run":       {func(*idempotency.Config) {}, nil},
		"fail open": {func(c *idempotency.Config) { c.FailOpen = true }, newFaultStore("Reserve", fullStore)},
		"rebuild": {func(c *idempotency.Config) {
			c.Rebuild = func(_ http.ResponseWriter, r *http.Request, _ string) { keepBody(r) }
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			h := newFixture(t, test.store, test.change).Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if bodies := r.Context().Value(bodiesKey{}); bodies != nil {
					idempotency.FromContext(r.Context()).KeepRef("ref")
					keepBody(r)
				}
			}))
			for n := range 100 {
				mine, other := fmt.Sprint("mine", n), fmt.Sprint("other", n)
				var bodies []io.Reader
				ctx := context.WithValue(t.Context(), bodiesKey{}, &bodies)
				secret := request(mine, strings.Repeat("s", 1000))
				call(h, secret.WithContext(ctx))
				again := request(mine, strings.Repeat("s", 1000))
				call(h, again.WithContext(ctx))
				call(h, request(other, strings.Repeat("o", 1000)))
				require.NotEmpty(t, bodies)
				for _, body := range bodies {
					rest, err := io.ReadAll(body)
					require.ErrorIs(t, err, http.ErrBodyReadAfterClose)
					require.Empty(t, rest)
				}
			}
		})
	}
}

type bodiesKey struct{}

// keepBody reads the beginning of a body and holds on to the rest.
func keepBody(r *http.Request) {
	bodies := r.Context().Value(bodiesKey{}).(*[]io.Reader)
	_, _ = r.Body.Read(make([]byte, 1))
	*bodies = append(*bodies, r.Body)
}

// Readers that go on while the handler returns and other requests come: no race, and no
// byte of theirs.
func TestBodyReadersBesideOtherRequests(t *testing.T) {
	t.Parallel()
	var readers sync.WaitGroup
	h := newFixture(t, nil).Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mine := r.Header.Get("Mine")
		readers.Go(func() {
			for {
				b := make([]byte, 7)
				n, err := r.Body.Read(b)
				if strings.Trim(string(b[:n]), mine) != "" {
					assert.Fail(t, "another request's body", "%q for %q", b[:n], mine)
					return
				}
				if err != nil {
					return
				}
			}
		})
	}))
	var clients sync.WaitGroup
	for _, mine := range []string{"a", "b", "c", "d"} {
		clients.Go(func() {
			for n := range 300 {
				call(h, request(fmt.Sprint(mine, n), strings.Repeat(mine, 2000), "Mine", mine))
			}
		})
	}
	clients.Wait()
	readers.Wait()
}

// A fingerprint function is told not to keep the body; one that does keeps its own bytes
// at least.
func TestFingerprintFunctionThatKeepsTheBody(t *testing.T) {
	t.Parallel()
	var kept [][]byte
	h := newFixture(t, nil, func(c *idempotency.Config) {
		c.Fingerprint = func(_ *http.Request, body []byte) ([]byte, error) {
			kept = append(kept, body)
			return body, nil
		}
	}).Handler(&charges{})
	for _, body := range []string{"first", "other"} {
		call(h, request(body, body))
	}
	require.Equal(t, [][]byte{[]byte("first"), []byte("other")}, kept)
}

func TestFingerprintFunction(t *testing.T) {
	onEachProtocol(t, func(t *testing.T, listen listenFunc) {
		store, h := newFaultStore("Reserve"), &charges{}
		f := newFixture(t, store, func(c *idempotency.Config) {
			c.Fingerprint = func(r *http.Request, body []byte) ([]byte, error) {
				if string(body) == "bad" {
					return nil, errors.New("cannot digest")
				}
				n, err := r.Body.Read(make([]byte, 1))
				assert.Zero(t, n, "read already")
				assert.Equal(t, io.EOF, err)
				return body[:1], nil
			}
		})
		p := listen(f.Handler(h))
		a := p.post(t, "k", "bad")
		requireProblem(t, a, http.StatusInternalServerError, "internal_error")
		require.NotContains(t, a.Body, "digest")
		require.False(t, a.Close, "the body was read")
		require.Empty(t, store.called())
		e := f.event(t)
		require.Equal(t, idempotency.Rejected, e.Outcome)
		require.Equal(t, http.StatusInternalServerError, e.Status)
		require.Contains(t, f.logs.String(), "cannot digest")

		p.post(t, "k", "a1")
		require.True(t, p.post(t, "k", "a2").replayed(), "the function decides what of the body counts")
		require.Equal(t, http.StatusUnprocessableEntity, p.post(t, "k", "b1").Status)
		r := p.request(t, "k", strings.NewReader("a1"))
		r.URL.RawQuery = "x=1"
		a, err := p.do(r)
		require.NoError(t, err)
		require.Equal(t, http.StatusUnprocessableEntity, a.Status, "the query always counts")
		require.EqualValues(t, 1, h.Load())
	})
}
