package idempotency_test

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency"
)

// Unwrap and Hijack would go around the buffer.
func TestRecorderHidesTheRealWriter(t *testing.T) {
	onEachProtocol(t, func(t *testing.T, listen listenFunc) {
		p := listen(newFixture(t, nil).Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, unwraps := w.(interface{ Unwrap() http.ResponseWriter })
			assert.False(t, unwraps)
			_, hijacks := w.(http.Hijacker)
			assert.False(t, hijacks)
			_, pushes := w.(http.Pusher)
			assert.False(t, pushes)
			_, _, err := http.NewResponseController(w).Hijack()
			assert.ErrorIs(t, err, http.ErrNotSupported)
			io.WriteString(w, "x")
		})))
		require.Equal(t, "x", p.post(t, "k", "{}").Body)
		require.True(t, p.post(t, "k", "{}").replayed())
	})
}

// controlled notes the deadlines that reach the connection.
type controlled struct {
	*httptest.ResponseRecorder
	write, read time.Time
	duplex      bool
}

func (c *controlled) SetWriteDeadline(d time.Time) error { c.write = d; return nil }
func (c *controlled) SetReadDeadline(d time.Time) error  { c.read = d; return nil }
func (c *controlled) EnableFullDuplex() error            { c.duplex = true; return nil }

func TestResponseController(t *testing.T) {
	t.Parallel()
	w := &controlled{ResponseRecorder: httptest.NewRecorder()}
	deadline := time.Now().Add(time.Hour)
	var late http.ResponseWriter
	newFixture(t, nil).Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		c := http.NewResponseController(w)
		require.NoError(t, c.SetWriteDeadline(deadline))
		require.NoError(t, c.SetReadDeadline(deadline))
		require.NoError(t, c.EnableFullDuplex())
		require.NoError(t, c.Flush())
		late = w
	})).ServeHTTP(w, request("k", "{}"))
	require.Equal(t, deadline, w.write)
	require.Zero(t, w.read, "on the connection it would make the server think that its client has left")
	require.True(t, w.duplex)

	// The connection may serve another request by now.
	w.duplex = false
	require.Error(t, http.NewResponseController(late).SetWriteDeadline(time.Time{}))
	require.Error(t, http.NewResponseController(late).EnableFullDuplex())
	require.Error(t, http.NewResponseController(late).Flush())
	require.Equal(t, deadline, w.write)
	require.False(t, w.duplex)
}

// A read deadline that a handler sets would end its client's connection.
func TestReadDeadlineHarmsNobody(t *testing.T) {
	onEachProtocol(t, func(t *testing.T, listen listenFunc) {
		var outer context.Context
		m := newFixture(t, nil).Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			assert.NoError(t, http.NewResponseController(w).SetReadDeadline(time.Now().Add(-time.Hour)))
			select {
			case <-outer.Done():
				assert.Fail(t, "the server takes its client for gone")
			case <-time.After(50 * time.Millisecond):
			}
			io.WriteString(w, "x")
		}))
		p := listen(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			outer = r.Context()
			m.ServeHTTP(w, r)
		}))
		require.Equal(t, "x", p.post(t, "k", "{}").Body)
	})
}

// What a goroutine writes after the handler returned is refused, is not in the record,
// and does not meet another request.
func TestLateWritesAreRefused(t *testing.T) {
	onEachProtocol(t, func(t *testing.T, listen listenFunc) {
		for name, body := range map[string]string{"buffered": "done", "streamed": strings.Repeat("x", 1<<20+1)} {
			t.Run(name, func(t *testing.T) {
				var writers sync.WaitGroup
				p := listen(newFixture(t, nil).Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					returned := r.Context().Done() // the attempt's end
					writers.Go(func() {
						<-returned
						_, err := io.WriteString(w, "late")
						assert.Error(t, err)
						_, err = w.Write([]byte("late"))
						assert.Error(t, err)
						assert.Error(t, http.NewResponseController(w).Flush())
						w.WriteHeader(http.StatusTeapot)
						w.WriteHeader(http.StatusEarlyHints)
					})
					io.WriteString(w, body)
				})))
				require.Equal(t, body, p.post(t, "k", "{}").Body)
				writers.Wait()
				a := p.post(t, "k", "{}")
				require.True(t, a.replayed())
				require.NotContains(t, a.Body, "late")
				require.Equal(t, http.StatusOK, a.Status)
			})
		}
	})
}

// Goroutines that write all the time: no race, and the replay is the first answer.
func TestConcurrentWrites(t *testing.T) {
	onEachProtocol(t, func(t *testing.T, listen listenFunc) {
		for name, limit := range map[string]int64{"buffered": 1 << 20, "streamed": 3000} {
			t.Run(name, func(t *testing.T) {
				var writers sync.WaitGroup
				f := newFixture(t, nil, func(c *idempotency.Config) { c.MaxResponseBytes = limit })
				p := listen(f.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					started := make(chan struct{}, 4)
					for range 4 {
						writers.Go(func() {
							for n := range 5000 {
								if _, err := io.WriteString(w, "0123456789"); err != nil {
									break
								}
								if n == 100 {
									started <- struct{}{}
								}
							}
						})
					}
					<-started
				})))
				first := p.post(t, "k", "{}")
				writers.Wait()
				again := p.post(t, "k", "{}")
				require.True(t, again.replayed())
				require.NoError(t, first.BodyErr)
				require.Zero(t, len(first.Body)%10)
				if again.Header.Get("Idempotency-Replay") == "" {
					require.Equal(t, first.Body, again.Body)
				}
			})
		}
	})
}

// A response longer than MaxResponseBytes reaches the client whole, as it comes; its
// record, written before the first byte, is Omitted.
func TestResponseOverTheLimit(t *testing.T) {
	onEachProtocol(t, func(t *testing.T, listen listenFunc) {
		for name, body := range map[string]string{"at it": "0123456789", "over it": "0123456789x"} {
			t.Run(name, func(t *testing.T) {
				h := &charges{}
				f := newFixture(t, nil, func(c *idempotency.Config) { c.MaxResponseBytes = 10 })
				p := listen(f.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					h.Add(1)
					w.Header().Set("Location", "/charges/1")
					w.Header().Set("Content-Type", "text/csv")
					w.Header().Set("Content-Encoding", "identity")
					w.Header().Set("ETag", `"1"`)
					w.WriteHeader(http.StatusCreated)
					for _, c := range body {
						n, err := io.WriteString(w, string(c))
						assert.Equal(t, 1, n)
						assert.NoError(t, err)
					}
				})))
				first := p.post(t, "k", "{}")
				require.Equal(t, body, first.Body)
				require.Equal(t, "text/csv", first.Header.Get("Content-Type"))
				require.Equal(t, idempotency.Executed, f.event(t).Outcome)

				again := p.post(t, "k", "{}")
				require.True(t, again.replayed())
				require.Equal(t, http.StatusCreated, again.Status)
				require.Equal(t, "/charges/1", again.Header.Get("Location"))
				require.Equal(t, `"1"`, again.Header.Get("ETag"))
				require.EqualValues(t, 1, h.Load(), "never a second run")
				if len(body) > 10 {
					require.Equal(t, "omitted", again.Header.Get("Idempotency-Replay"))
					require.NotContains(t, again.Header, "Content-Type")
					require.NotContains(t, again.Header, "Content-Encoding")
					require.Empty(t, again.Body)
					return
				}
				require.NotContains(t, again.Header, "Idempotency-Replay")
				require.Equal(t, body, again.Body)
			})
		}
	})
}

// A long response is sent as it comes: the client sees its beginning before the handler
// has written its end.
func TestLongResponseIsStreamed(t *testing.T) {
	onEachProtocol(t, func(t *testing.T, listen listenFunc) {
		seen := make(chan struct{})
		f := newFixture(t, nil, func(c *idempotency.Config) { c.MaxResponseBytes = 10 })
		p := listen(f.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			io.WriteString(w, "eleven byte")
			w.(http.Flusher).Flush()
			select {
			case <-seen:
				io.WriteString(w, "s, and more")
			case <-time.After(guard):
			}
		})))
		resp, err := p.client.Do(p.request(t, "k", strings.NewReader("{}")))
		require.NoError(t, err)
		defer resp.Body.Close()
		body := bufio.NewReader(resp.Body)
		_, err = body.ReadString('e')
		require.NoError(t, err)
		close(seen)
		rest, err := io.ReadAll(body)
		require.NoError(t, err)
		require.True(t, strings.HasSuffix(string(rest), "bytes, and more"))
	})
}

// The record before the first byte cannot be written: the response is sent all the
// same, and the record tried again at the end, with the handler's header.
func TestEarlyRecordFailsOnce(t *testing.T) {
	t.Parallel()
	store := newFaultStore("Complete", func(context.Context, func() error) error { return idempotency.ErrStoreFull }, works)
	f := newFixture(t, store, func(c *idempotency.Config) { c.MaxResponseBytes = 10 })
	h := f.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Location", "/charges/1")
		w.WriteHeader(http.StatusCreated)
		io.WriteString(w, "eleven bytes")
	}))
	require.Equal(t, "eleven bytes", call(h, request("k", "{}")).Body)
	require.Equal(t, idempotency.Executed, f.event(t).Outcome)
	a := call(h, request("k", "{}"))
	require.Equal(t, http.StatusCreated, a.Status)
	require.Equal(t, "/charges/1", a.Header.Get("Location"))
	require.Equal(t, "omitted", a.Header.Get("Idempotency-Replay"))
}

// Once it is recorded that a response began, nothing changes that record.
func TestEarlyRecordIsFinal(t *testing.T) {
	t.Parallel()
	for name, after := range map[string]func(*idempotency.Attempt){
		"Release": (*idempotency.Attempt).Release,
		"KeepRef": func(a *idempotency.Attempt) { a.KeepRef("ref") },
		"panic":   func(*idempotency.Attempt) { panic(http.ErrAbortHandler) },
	} {
		t.Run(name, func(t *testing.T) {
			store := newFaultStore("Reserve")
			f := newFixture(t, store, func(c *idempotency.Config) {
				c.MaxResponseBytes = 10
				c.Rebuild = func(http.ResponseWriter, *http.Request, string) { t.Error("rebuilt") }
			})
			h := f.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(http.StatusCreated)
				io.WriteString(w, "eleven bytes")
				after(idempotency.FromContext(r.Context()))
			}))
			func() {
				defer func() { _ = recover() }()
				call(h, request("k", "{}"))
			}()
			require.Equal(t, idempotency.Executed, f.event(t).Outcome)
			require.Len(t, store.called("Complete", "Release"), 1)
			a := call(h, request("k", "{}"))
			require.Equal(t, http.StatusCreated, a.Status)
			require.Equal(t, "omitted", a.Header.Get("Idempotency-Replay"))
		})
	}
}

// A handler's mistake surfaces as it does without the middleware, not on the replay.
func TestInvalidStatusPanics(t *testing.T) {
	t.Parallel()
	for _, status := range []int{0, 99, 1000, -1} {
		h := newFixture(t, nil).Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
		require.Panics(t, func() { call(h, request("k", "{}")) })
		require.Equal(t, http.StatusInternalServerError, call(h, request("k", "{}")).Status)
	}
}

// After a write past the declared length none that would fit is taken: the body, and
// its replay, would have a hole.
func TestWritePastTheDeclaredLength(t *testing.T) {
	onEachProtocol(t, func(t *testing.T, listen listenFunc) {
		p := listen(newFixture(t, nil).Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "7")
			io.WriteString(w, "hello")
			for _, s := range []string{", world", "!!"} {
				n, err := io.WriteString(w, s)
				assert.Zero(t, n)
				assert.ErrorIs(t, err, http.ErrContentLength)
			}
		})))
		first := p.post(t, "k", "{}")
		require.Equal(t, "hello", first.Body)
		require.Error(t, first.BodyErr, "as declared, two bytes are missing")
		again := p.post(t, "k", "{}")
		require.True(t, again.replayed())
		require.Equal(t, "hello", again.Body)
		require.NoError(t, again.BodyErr)
	})
}

// Trailers come behind the response that is recorded: they are neither sent nor kept.
func TestNoTrailers(t *testing.T) {
	onEachProtocol(t, func(t *testing.T, listen listenFunc) {
		p := listen(newFixture(t, nil).Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Trailer", "X-Sum")
			io.WriteString(w, "x")
			w.Header().Set("X-Sum", "1")
			w.Header().Set(http.TrailerPrefix+"X-More", "1")
		})))
		for range 2 {
			a := p.post(t, "k", "{}")
			require.Equal(t, "x", a.Body)
			require.Empty(t, a.Trailer.Get("X-Sum"))
			require.Empty(t, a.Trailer.Get("X-More"))
		}
	})
}
