package idempotency_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency"
)

// What is called in code that runs unprotected too works on nil.
func TestNilAttempt(t *testing.T) {
	t.Parallel()
	a := idempotency.FromContext(t.Context())
	require.Nil(t, a)
	require.Zero(t, a.Key())
	require.Zero(t, a.Number())
	a.Release()
	a.KeepRef("ref")
	first, second := a.Derive("x"), a.Derive("x")
	require.NotEqual(t, first, second, "there is no key to derive from")
	require.NoError(t, uuid.Validate(first))
}

func TestAttemptInTheHandler(t *testing.T) {
	onEachProtocol(t, func(t *testing.T, listen listenFunc) {
		f := newFixture(t, nil, func(c *idempotency.Config) { c.Tenant = tenantHeader })
		p := listen(f.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			a := idempotency.FromContext(r.Context())
			derived, cancel := context.WithCancel(r.Context())
			defer cancel()
			assert.Same(t, a, idempotency.FromContext(derived))
			fmt.Fprintf(w, "%#v %d", a.Key(), a.Number())
		})))
		a := p.post(t, `"k 1"`, "{}", "Tenant", "t")
		require.Equal(t, `idempotency.Key{Tenant:"t", Endpoint:"POST /charges", Value:"k 1"} 1`, a.Body)
	})
}

// A derived key is the same on every attempt, and another for anything else.
func TestDerive(t *testing.T) {
	t.Parallel()
	key := idempotency.Key{Tenant: "t", Endpoint: "e", Value: "v"}
	require.Equal(t, "ad9f4b0c-2d61-887e-8572-2ff69c4cf52d", key.Derive("capture"), "golden: it must never change")
	seen := make(map[string]string)
	for _, k := range []idempotency.Key{
		key, {Tenant: "u", Endpoint: "e", Value: "v"}, {Tenant: "t", Endpoint: "f", Value: "v"},
		{Tenant: "t", Endpoint: "e", Value: "w"}, {Tenant: "te", Endpoint: "", Value: "v"}, {Tenant: "t", Endpoint: "ev", Value: ""},
		{},
	} {
		for _, name := range []string{"capture", "refund", "", "Capture"} {
			id := k.Derive(name)
			require.Equal(t, id, k.Derive(name))
			parsed, err := uuid.Parse(id)
			require.NoError(t, err)
			require.Equal(t, uuid.Version(8), parsed.Version())
			require.Equal(t, uuid.RFC4122, parsed.Variant())
			if before, ok := seen[id]; ok {
				require.Failf(t, "derived twice", "%q and %q of %v", before, name, k)
			}
			seen[id] = fmt.Sprint(k, name)
		}
	}

	var derived []string
	f := newFixture(t, nil, func(c *idempotency.Config) { c.Keep = func(int) bool { return false } })
	h := f.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		derived = append(derived, idempotency.FromContext(r.Context()).Derive("capture"))
	}))
	call(h, request("k", "{}"))
	call(h, request("k", "{}"))
	want := idempotency.Key{Tenant: "single", Endpoint: "POST /charges", Value: "k"}.Derive("capture")
	require.Equal(t, []string{want, want}, derived)
}

// keepsRef records a reference to what it wrote.
func keepsRef(w http.ResponseWriter, r *http.Request) {
	idempotency.FromContext(r.Context()).KeepRef("charge-17")
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Location", "/charges/17")
	w.WriteHeader(http.StatusCreated)
	io.WriteString(w, `{"id":17}`)
}

func TestKeepRefAndRebuild(t *testing.T) {
	onEachProtocol(t, func(t *testing.T, listen listenFunc) {
		for name, rebuild := range map[string]func(http.ResponseWriter, *http.Request, string){
			"body": func(w http.ResponseWriter, r *http.Request, ref string) {
				body, err := io.ReadAll(r.Body)
				assert.NoError(t, err)
				assert.Equal(t, "{}", string(body))
				assert.Equal(t, "true", w.Header().Get("Idempotent-Replayed"))
				assert.Equal(t, "/charges/17", w.Header().Get("Location"))
				assert.Nil(t, idempotency.FromContext(r.Context()))
				fmt.Fprintf(w, `{"id":%s}`, strings.TrimPrefix(ref, "charge-"))
			},
			"flush first": func(w http.ResponseWriter, _ *http.Request, _ string) {
				assert.NoError(t, http.NewResponseController(w).Flush())
				io.WriteString(w, `{"id":17}`)
			},
			"early hints": func(w http.ResponseWriter, _ *http.Request, _ string) {
				w.WriteHeader(http.StatusEarlyHints)
				io.WriteString(w, `{"id":17}`)
			},
			"nothing": func(http.ResponseWriter, *http.Request, string) {},
			"own status": func(w http.ResponseWriter, _ *http.Request, _ string) {
				w.WriteHeader(http.StatusGone)
				io.WriteString(w, `{"id":17}`)
			},
		} {
			t.Run(name, func(t *testing.T) {
				store := &recordingStore{faultStore: newFaultStore("Reserve")}
				f := newFixture(t, store, func(c *idempotency.Config) { c.Rebuild = rebuild })
				p := listen(f.Handler(http.HandlerFunc(keepsRef)))
				first := p.post(t, "k", "{}")
				require.Equal(t, `{"id":17}`, first.Body)
				require.Equal(t, "charge-17", store.responses[0].Ref)
				require.Empty(t, store.responses[0].Body)

				a := p.post(t, "k", "{}")
				require.True(t, a.replayed())
				require.Equal(t, "/charges/17", a.Header.Get("Location"))
				require.NotContains(t, a.Header, "Idempotency-Replay")
				status, body := http.StatusCreated, `{"id":17}`
				switch name {
				case "nothing":
					body = ""
				case "own status":
					status = http.StatusGone
				}
				require.Equal(t, status, a.Status)
				require.Equal(t, body, a.Body)
			})
		}
	})
}

// Without Rebuild a reference replays like a body that was not kept.
func TestKeepRefWithoutRebuild(t *testing.T) {
	onEachProtocol(t, func(t *testing.T, listen listenFunc) {
		p := listen(newFixture(t, nil).Handler(http.HandlerFunc(keepsRef)))
		require.Equal(t, `{"id":17}`, p.post(t, "k", "{}").Body)
		a := p.post(t, "k", "{}")
		require.True(t, a.replayed())
		require.Equal(t, http.StatusCreated, a.Status)
		require.Equal(t, "omitted", a.Header.Get("Idempotency-Replay"))
		require.Equal(t, "/charges/17", a.Header.Get("Location"))
		require.NotContains(t, a.Header, "Content-Type")
		require.Empty(t, a.Body)
	})
}

// A reference given before a long response keeps it from being Omitted.
func TestKeepRefOfALongResponse(t *testing.T) {
	onEachProtocol(t, func(t *testing.T, listen listenFunc) {
		f := newFixture(t, nil, func(c *idempotency.Config) {
			c.MaxResponseBytes = 4
			c.Rebuild = func(w http.ResponseWriter, _ *http.Request, ref string) { io.WriteString(w, ref) }
		})
		p := listen(f.Handler(http.HandlerFunc(keepsRef)))
		require.Equal(t, `{"id":17}`, p.post(t, "k", "{}").Body)
		a := p.post(t, "k", "{}")
		require.Equal(t, "charge-17", a.Body)
		require.NotContains(t, a.Header, "Idempotency-Replay")
	})
}

// A form that Rebuild parses is cleaned up by the server as well.
func TestRebuildHandsBack(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil, func(c *idempotency.Config) {
		c.Rebuild = func(_ http.ResponseWriter, r *http.Request, _ string) {
			assert.NoError(t, r.ParseMultipartForm(1<<20))
			r.Pattern = "POST /charges"
		}
	})
	h := f.Handler(http.HandlerFunc(keepsRef))
	form := "--b\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n--b--\r\n"
	for _, replayed := range []bool{false, true} {
		r := request("k", form, "Content-Type", "multipart/form-data; boundary=b")
		require.Equal(t, replayed, call(h, r).replayed())
		require.Equal(t, replayed, r.MultipartForm != nil)
		require.Equal(t, replayed, r.Pattern != "")
	}
}

// A response longer than the limit that is not recorded reaches the client whole, and
// the key is free.
func TestLongResponseThatIsNotKept(t *testing.T) {
	onEachProtocol(t, func(t *testing.T, listen listenFunc) {
		runs := 0
		f := newFixture(t, nil, func(c *idempotency.Config) { c.MaxResponseBytes = 10 })
		p := listen(f.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			runs++
			idempotency.FromContext(r.Context()).Release()
			io.WriteString(w, strings.Repeat("x", 5000))
			io.WriteString(w, strings.Repeat("y", 5000))
		})))
		for range 2 {
			a := p.post(t, "k", "{}")
			require.Len(t, a.Body, 10_000)
			require.False(t, a.replayed())
			require.Equal(t, idempotency.Released, f.event(t).Outcome)
		}
		require.Equal(t, 2, runs)
	})
}

// The methods of an attempt may be called by many goroutines, and after its end.
func TestAttemptIsSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	var all sync.WaitGroup
	f := newFixture(t, nil)
	h := f.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a := idempotency.FromContext(r.Context())
		for n := range 8 {
			all.Go(func() {
				for range 500 {
					a.KeepRef(fmt.Sprint("ref", n))
					_, _, _ = a.Key(), a.Number(), a.Derive("x")
				}
			})
		}
	}))
	call(h, request("k", "{}"))
	all.Wait()
	require.Equal(t, idempotency.Executed, f.event(t).Outcome)
	require.True(t, call(h, request("k", "{}")).replayed())
}
