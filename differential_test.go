package idempotency_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency"
)

// handlers are what net/http lets a handler do with a response. Each is deterministic.
var handlers = map[string]http.HandlerFunc{
	"nothing":       func(http.ResponseWriter, *http.Request) {},
	"status alone":  func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusAccepted) },
	"body alone":    func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "plain text") },
	"empty writes":  func(w http.ResponseWriter, _ *http.Request) { w.Write(nil); w.Write([]byte{}); w.WriteHeader(201) },
	"JSON":          (&charges{}).once,
	"no content":    func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) },
	"not modified":  func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("ETag", `"1"`); w.WriteHeader(304) },
	"odd statuses":  func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(299); io.WriteString(w, "x") },
	"highest":       func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(999) },
	"error":         func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "declined", http.StatusPaymentRequired) },
	"redirect":      func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/charges/1", http.StatusSeeOther) },
	"not found":     http.NotFound,
	"serve content": func(w http.ResponseWriter, r *http.Request) { serveContent(w, r) },
	"retry later": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "120")
		w.WriteHeader(http.StatusServiceUnavailable)
	},

	// What is sniffed.
	"sniffed HTML": func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "<!DOCTYPE html><p>x") },
	"sniffed PNG":  func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("\x89PNG\r\n\x1a\n")) },
	"sniffed in pieces": func(w http.ResponseWriter, _ *http.Request) {
		for _, c := range "<!DOCTYPE html><p>" + strings.Repeat("x", 600) {
			io.WriteString(w, string(c))
		}
	},
	"sniffed before a flush": func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "<!DOC")
		http.NewResponseController(w).Flush()
		io.WriteString(w, "TYPE html>")
	},
	"flushed before a body": func(w http.ResponseWriter, _ *http.Request) {
		http.NewResponseController(w).Flush()
		io.WriteString(w, "<!DOCTYPE html>")
	},
	"not sniffed: nil": func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["Content-Type"] = nil
		io.WriteString(w, "<!DOCTYPE html>")
	},
	"not sniffed: empty": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "")
		io.WriteString(w, "<!DOCTYPE html>")
	},
	"not sniffed: encoded": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		w.Write([]byte("\x1f\x8b\x08\x00"))
	},
	"not sniffed: transfer coding": func(w http.ResponseWriter, _ *http.Request) { // over HTTP/2 it is
		w.Header().Set("Transfer-Encoding", "chunked")
		io.WriteString(w, "<!DOCTYPE html>")
	},
	"sniffed: empty encoding": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "")
		io.WriteString(w, "<!DOCTYPE html>")
	},
	"not sniffed: status without body": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204); io.WriteString(w, "x") },

	// Header fields.
	"many lines": func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["Link"] = []string{"</1>; rel=a, </2>; rel=b", "</3>; rel=c"}
		w.Header()["Content-Language"] = []string{"de", "en,fr"}
		w.WriteHeader(http.StatusCreated)
	},
	"twenty lines": func(w http.ResponseWriter, _ *http.Request) {
		for n := range 20 {
			w.Header().Add("Link", fmt.Sprintf("</%d>", n))
			w.Header().Add(fmt.Sprint("X-Line-", n), "1")
		}
		io.WriteString(w, "x")
	},
	"every recorded field": func(w http.ResponseWriter, _ *http.Request) {
		for _, name := range idempotency.DefaultReplayHeaders {
			w.Header().Set(name, "1")
		}
		w.WriteHeader(http.StatusCreated)
	},
	"fields that are not recorded": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Set-Cookie", "a=b")
		w.Header().Set("X-Request-Id", "1")
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("Vary", "Origin")
		io.WriteString(w, "x")
	},
	"header after the status": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", "/1")
		w.WriteHeader(http.StatusCreated)
		w.Header().Set("Location", "/2")
		w.Header().Set("ETag", `"2"`)
		io.WriteString(w, "x")
	},
	"status twice": func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusCreated)
		w.WriteHeader(http.StatusConflict)
	},
	"status after a body": func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "x")
		w.WriteHeader(http.StatusConflict)
	},
	"own date": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Date", "Mon, 01 Jan 2001 00:00:00 GMT")
		io.WriteString(w, "x")
	},
	"spaces around values": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", " /a\n/b ")
		w.WriteHeader(http.StatusCreated)
	},

	// Lengths and pieces.
	"length declared":     declared("5", "hello"),
	"length in spaces":    declared(" 5 ", "hello"),
	"length that is none": declared("five", "hello"),
	"length that is less": declared("-1", "hello"),
	"length of nothing":   declared("0", ""),
	"long body":           func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, strings.Repeat("0123456789", 30_000)) },
	"body at the buffer's size": func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, strings.Repeat("x", 2048))
	},
	"body past the limit": func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, strings.Repeat("x", 1<<20+1)) },
	"long body, copied": func(w http.ResponseWriter, _ *http.Request) {
		io.Copy(w, strings.NewReader(strings.Repeat("x", 1<<20+100_000)))
	},
	"bytes that are no text": func(w http.ResponseWriter, _ *http.Request) {
		w.Write([]byte{0, 1, 2, 0xff, 0xfe, '\r', '\n', 0})
	},
	"flushed many times": func(w http.ResponseWriter, _ *http.Request) {
		for n := range 5 {
			fmt.Fprintf(w, "line %d\n", n)
			w.(http.Flusher).Flush()
		}
	},

	// What is written, and what a handler is told.
	"results of writes": func(w http.ResponseWriter, _ *http.Request) {
		n, err := w.Write([]byte("five."))
		fmt.Fprintln(w, n, err)
		n, err = io.WriteString(w, "six...")
		fmt.Fprintln(w, n, err)
		fmt.Fprintln(w, http.NewResponseController(w).Flush())
		fmt.Fprintln(w, http.NewResponseController(w).SetWriteDeadline(time.Now().Add(time.Hour)))
		fmt.Fprintln(w, http.NewResponseController(w).SetReadDeadline(time.Time{}))
	},
	"result of a write without body": func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNoContent)
		if _, err := io.WriteString(w, "x"); err != http.ErrBodyNotAllowed {
			panic(err)
		}
	},
	"request": func(w http.ResponseWriter, r *http.Request) { echo(w, r) },
	"body read twice": func(w http.ResponseWriter, r *http.Request) {
		first, err := io.ReadAll(r.Body)
		second, again := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%q %v %q %v", first, err, second, again)
	},
	"body read after close": func(w http.ResponseWriter, r *http.Request) {
		r.Body.Close()
		n, err := r.Body.Read(make([]byte, 1))
		fmt.Fprintln(w, n, err != nil) // the text is each protocol's own
	},
	"form": func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, r.ParseForm(), r.PostForm, r.FormValue("a"))
	},
}

func (c *charges) once(w http.ResponseWriter, r *http.Request) { new(charges).ServeHTTP(w, r) }

func serveContent(w http.ResponseWriter, r *http.Request) {
	http.ServeContent(w, r, "charge.txt", time.Unix(1_700_000_000, 0), bytes.NewReader([]byte("0123456789")))
}

// declared answers with a Content-Length and then writes.
func declared(length string, writes ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", length)
		for _, s := range writes {
			io.WriteString(w, s)
		}
	}
}

// echo tells what a handler sees of a request.
func echo(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	_, hasServer := r.Context().Value(http.ServerContextKey).(*http.Server)
	json.NewEncoder(w).Encode([]any{
		r.Method, r.URL, r.Proto, r.Header, string(body), err, r.ContentLength, r.TransferEncoding, r.Close,
		r.RequestURI, r.GetBody == nil, r.Trailer, r.TLS == nil, r.Pattern, hasServer,
	})
}

// The first answer through the middleware is the bare handler's, and the replay is the
// first answer, but for what belongs to one message.
func TestAnswersEqualTheBareHandlers(t *testing.T) {
	onEachProtocol(t, func(t *testing.T, listen listenFunc) {
		compareWithBare(t, &idempotency.MemoryStore{}, listen)
	})
}

func TestAnswersFromPostgresEqualTheBareHandlers(t *testing.T) {
	onEachProtocol(t, func(t *testing.T, listen listenFunc) {
		compareWithBare(t, newPgFixture(t), listen)
	})
}

func compareWithBare(t *testing.T, store idempotency.Store, listen listenFunc) {
	bare := listen(byName(nil))
	wrapped := listen(byName(newFixture(t, store).Handler))
	for name := range handlers {
		t.Run(name, func(t *testing.T) {
			want := exchangeNamed(t, bare, name)
			got := exchangeNamed(t, wrapped, name)
			require.Equal(t, want.Status, got.Status)
			require.Equal(t, want.Body, got.Body)
			require.Equal(t, want.BodyErr == nil, got.BodyErr == nil)
			require.Equal(t, want.Trailer, got.Trailer)
			if want.Header.Get("Content-Length") == "" {
				got.Header.Del("Content-Length") // the whole response was there before it was sent
			}
			require.Equal(t, want.Header, got.Header)

			again := exchangeNamed(t, wrapped, name)
			require.True(t, again.replayed())
			require.Equal(t, got.Status, again.Status)
			require.Equal(t, recordedFields(got, again), recordedFields(again, got))
			if again.Header.Get("Idempotency-Replay") == "omitted" {
				require.Greater(t, len(got.Body), 1<<20)
				require.Empty(t, again.Body)
				return
			}
			require.Equal(t, got.Body, again.Body)
		})
	}
}

// byName serves the handler that the request names, through wrap.
func byName(wrap func(http.Handler) http.Handler) http.Handler {
	var h http.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handlers[r.Header.Get("Handler")](w, r)
	})
	if wrap != nil {
		h = wrap(h)
	}
	return h
}

// exchangeNamed asks for a handler by its name and leaves out what time does.
func exchangeNamed(t *testing.T, p *peer, name string) answer {
	t.Helper()
	key := strings.Map(func(c rune) rune { return map[bool]rune{true: c, false: '-'}[c > ' '] }, name)
	a := p.post(t, strings.ReplaceAll(key, ",", ""), "a=1&b=2", "Handler", name, "Content-Type", "application/x-www-form-urlencoded")
	if name != "own date" || a.replayed() {
		require.NotEmpty(t, a.Header.Get("Date"))
		require.NotContains(t, a.Header.Get("Date"), "2001", "a date is the message's own")
		a.Header.Del("Date")
	}
	return a
}

// recordedFields are the fields of a that a record keeps.
func recordedFields(a, other answer) http.Header {
	kept := make(http.Header)
	omitted := a.Header.Get("Idempotency-Replay") == "omitted" || other.Header.Get("Idempotency-Replay") == "omitted"
	for name, values := range a.Header {
		typed := name == "Content-Type" || name == "Content-Encoding"
		if slices.Contains(idempotency.DefaultReplayHeaders, textproto.CanonicalMIMEHeaderKey(name)) && !(omitted && typed) {
			kept[name] = values
		}
	}
	return kept
}

// A 103 reaches the client at once and is not recorded.
func TestEarlyHints(t *testing.T) {
	onEachProtocol(t, func(t *testing.T, listen listenFunc) {
		p := listen(newFixture(t, nil).Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Link", "</style.css>; rel=preload")
			w.Header().Set("Etag", `"1"`)
			w.WriteHeader(http.StatusEarlyHints)
			w.Header().Del("Link")
			w.Header().Set("Location", "/charges/1")
			w.WriteHeader(http.StatusCreated)
			w.WriteHeader(http.StatusEarlyHints) // too late
			io.WriteString(w, "x")
		})))
		ask := func() (a answer, hints []textproto.MIMEHeader) {
			r := p.request(t, "k", strings.NewReader("{}"))
			ctx := httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
				Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
					require.Equal(t, http.StatusEarlyHints, code)
					hints = append(hints, h)
					return nil
				},
			})
			a, err := p.do(r.WithContext(ctx))
			require.NoError(t, err)
			return a, hints
		}
		first, hints := ask()
		require.Len(t, hints, 1)
		require.Equal(t, []string{"</style.css>; rel=preload"}, hints[0]["Link"])
		require.Equal(t, http.StatusCreated, first.Status)
		require.NotContains(t, first.Header, "Link")
		again, hints := ask()
		require.Empty(t, hints)
		require.Equal(t, http.StatusCreated, again.Status)
		require.Equal(t, []string{`"1"`}, again.Header["Etag"], "what was in the hints too is the handler's, and recorded")
		require.Equal(t, "/charges/1", again.Header.Get("Location"))
		require.NotContains(t, again.Header, "Link")
	})
}
