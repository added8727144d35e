package idempotency_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"math"
	"mime/multipart"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency"
)

// rawExchange sends text over a connection of its own, closes its writing side if told
// so, and returns what came until the server closed the connection.
func rawExchange(t *testing.T, p *peer, text string, closeWrite bool) string {
	t.Helper()
	conn, err := net.Dial("tcp", p.Listener.Addr().String())
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(guard)))
	_, err = io.WriteString(conn, strings.ReplaceAll(text, "\n", "\r\n"))
	require.NoError(t, err)
	if closeWrite {
		require.NoError(t, conn.(*net.TCPConn).CloseWrite())
	}
	reply, err := io.ReadAll(conn)
	require.NoError(t, err)
	return string(reply)
}

func parseReply(t *testing.T, reply string) answer {
	t.Helper()
	resp, err := http.ReadResponse(bufio.NewReader(strings.NewReader(reply)), nil)
	require.NoError(t, err, reply)
	return readAnswer(resp)
}

func TestBodyTooLarge(t *testing.T) {
	onEachProtocol(t, func(t *testing.T, listen listenFunc) {
		store, h := newFaultStore("Reserve"), &charges{}
		f := newFixture(t, store, func(c *idempotency.Config) { c.MaxRequestBytes = 10 })
		p := listen(f.Handler(h))
		for name, body := range map[string]io.Reader{
			"declared":   strings.NewReader("eleven byte"),
			"undeclared": io.MultiReader(strings.NewReader("eleven byte")),
		} {
			a, err := p.do(p.request(t, "k", body))
			require.NoError(t, err, name)
			requireProblem(t, a, http.StatusRequestEntityTooLarge, "request_body_too_large")
			require.Equal(t, idempotency.Rejected, f.event(t).Outcome)
		}
		require.Zero(t, h.Load())
		require.Empty(t, store.called())
		require.Equal(t, http.StatusCreated, p.post(t, "k", "ten bytes.").Status)
	})
}

// The largest limit is none, not an overflow.
func TestBodyWithoutLimit(t *testing.T) {
	t.Parallel()
	h := newFixture(t, nil, func(c *idempotency.Config) {
		c.MaxRequestBytes, c.MaxResponseBytes = math.MaxInt64, math.MaxInt64
	}).Handler(http.HandlerFunc(echoBody))
	body := strings.Repeat("x", 3<<20)
	require.Equal(t, body, call(h, request("k", body)).Body)
	require.Equal(t, body, call(h, request("k", body)).Body)
}

func echoBody(w http.ResponseWriter, r *http.Request) {
	if _, err := io.Copy(w, r.Body); err != nil {
		panic(err)
	}
}

func TestDefaultLimitIsAMebibyte(t *testing.T) {
	t.Parallel()
	h := newFixture(t, nil).Handler(&charges{})
	require.Equal(t, http.StatusCreated, call(h, request("k", strings.Repeat("x", 1<<20))).Status)
	require.Equal(t, http.StatusRequestEntityTooLarge, call(h, request("k", strings.Repeat("x", 1<<20+1))).Status)
}

// An early refusal does not read the rest of the body, so on HTTP/1 the connection
// cannot go on.
func TestRefusalClosesTheConnection(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil, func(c *idempotency.Config) { c.MaxRequestBytes = 10 })
	p := listen(t, false, f.Handler(&charges{}))
	for name, test := range map[string]struct {
		key, body string
		status    int
		close     bool
	}{
		"no key":              {"", "{}", 400, true},
		"too large":           {"k", strings.Repeat("x", 11), 413, true},
		"no key, and no body": {"", "", 400, false},
	} {
		a := p.post(t, test.key, test.body)
		require.Equal(t, test.status, a.Status, name)
		require.Equal(t, test.close, a.Close, name)
	}
	p.post(t, "k", "{}")
	require.False(t, p.post(t, "k", "{}").Close)
	require.False(t, p.post(t, "k", "x").Close, "422, and the body was read")
}

func TestRefusalOnHTTP2NamesNoConnection(t *testing.T) {
	t.Parallel()
	p := listen(t, true, newFixture(t, nil).Handler(&charges{}))
	a := p.post(t, "", "{}")
	require.Equal(t, http.StatusBadRequest, a.Status)
	require.NotContains(t, a.Header, "Connection")
}

// A body cut short reserves nothing, and the retry is a fresh run.
func TestTruncatedBody(t *testing.T) {
	t.Parallel()
	store, h := newFaultStore("Reserve"), &charges{}
	f := newFixture(t, store)
	p := listen(t, false, f.Handler(h))
	for name, body := range map[string]string{
		"length":         "Content-Length: 10\n\nshort",
		"nothing at all": "Content-Length: 10\n\n",
		"chunk":          "Transfer-Encoding: chunked\n\n10\nshort",
		"no last chunk":  "Transfer-Encoding: chunked\n\n5\nshort\n",
		"no chunk size":  "Transfer-Encoding: chunked\n\nshort\n",
	} {
		a := parseReply(t, rawExchange(t, p, "POST /charges HTTP/1.1\nHost: x\nIdempotency-Key: k\n"+body, true))
		require.Equal(t, http.StatusBadRequest, a.Status, name)
		requireProblem(t, a, http.StatusBadRequest, "request_body_unreadable")
		require.True(t, a.Close)
		require.ErrorIs(t, f.event(t).Err, idempotency.ErrBodyRead)
	}
	require.Zero(t, h.Load())
	require.Empty(t, store.called())
	require.Equal(t, http.StatusCreated, p.post(t, "k", "short, whole").Status)
}

// On HTTP/2 a client takes its request back with RST_STREAM.
func TestBodyAbandonedOnHTTP2(t *testing.T) {
	t.Parallel()
	store, h := newFaultStore("Reserve"), &charges{}
	f := newFixture(t, store)
	p := listen(t, true, f.Handler(h))
	_, err := p.do(p.request(t, "k", io.MultiReader(strings.NewReader("half"), failing{})))
	require.Error(t, err)
	e := f.event(t)
	require.Equal(t, idempotency.Rejected, e.Outcome)
	require.ErrorIs(t, e.Err, idempotency.ErrBodyRead)
	require.Zero(t, h.Load())
	require.Empty(t, store.called())
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, io.ErrNoProgress }

// The server's ReadTimeout ends a body that does not come: 408.
func TestSlowBody(t *testing.T) {
	t.Parallel()
	store, h := newFaultStore("Reserve"), &charges{}
	f := newFixture(t, store)
	p := listen(t, false, f.Handler(h), func(s *http.Server) { s.ReadTimeout = 100 * time.Millisecond })
	reply := rawExchange(t, p, "POST /charges HTTP/1.1\nHost: x\nIdempotency-Key: k\nContent-Length: 10\n\nslow", false)
	a := parseReply(t, reply)
	requireProblem(t, a, http.StatusRequestTimeout, "request_body_unreadable")
	require.True(t, a.Close)
	require.Equal(t, http.StatusRequestTimeout, f.event(t).Status)
	require.Zero(t, h.Load())
	require.Empty(t, store.called())
}

func TestExpectContinue(t *testing.T) {
	t.Parallel()
	h := &charges{}
	p := listen(t, false, newFixture(t, nil).Handler(h))
	head := "POST /charges HTTP/1.1\nHost: x\nConnection: close\nExpect: 100-continue\nContent-Length: 2\n"

	reply := rawExchange(t, p, head+"Idempotency-Key: k\n\n{}", false)
	require.True(t, strings.HasPrefix(reply, "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Created\r\n"), reply)
	reply = rawExchange(t, p, head+"Idempotency-Key: k\n\n{}", false)
	require.Contains(t, reply, "HTTP/1.1 201 Created\r\n")
	require.Contains(t, reply, "Idempotent-Replayed: true\r\n")

	reply = rawExchange(t, p, head+"\n", false)
	require.True(t, strings.HasPrefix(reply, "HTTP/1.1 400 Bad Request\r\n"), "refused before the body is asked for: %s", reply)
	require.EqualValues(t, 1, h.Load())
}

func TestChunkedBody(t *testing.T) {
	onEachProtocol(t, func(t *testing.T, listen listenFunc) {
		f := newFixture(t, nil)
		p := listen(f.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintln(w, r.ContentLength)
			echoBody(w, r)
		})))
		send := func(body string) answer {
			a, err := p.do(p.request(t, "k", io.MultiReader(strings.NewReader(body))))
			require.NoError(t, err)
			return a
		}
		require.Equal(t, "-1\nhello", send("hello").Body)
		require.True(t, send("hello").replayed())
		require.True(t, p.post(t, "k", "hello").replayed(), "the same request, its length declared")
		require.Equal(t, http.StatusUnprocessableEntity, send("hell").Status)
	})
}

// A body that an outer layer has read would have an empty fingerprint: it is the
// developer's mistake, not a request like any other.
func TestOuterLayerReadTheBody(t *testing.T) {
	onEachProtocol(t, func(t *testing.T, listen listenFunc) {
		for name, outer := range map[string]func(*http.Request){
			"all":    func(r *http.Request) { io.Copy(io.Discard, r.Body) },
			"a part": func(r *http.Request) { r.Body.Read(make([]byte, 1)) },
			"form":   func(r *http.Request) { r.ParseForm() },
			"closed": func(r *http.Request) {
				if r.ProtoMajor == 1 { // HTTP/2 has no error of its own for it: 400
					r.Body.Close()
				} else {
					io.Copy(io.Discard, r.Body)
				}
			},
		} {
			t.Run(name, func(t *testing.T) {
				store, h := newFaultStore("Reserve"), &charges{}
				f := newFixture(t, store)
				m := f.Handler(h)
				p := listen(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					outer(r)
					m.ServeHTTP(w, r)
				}))
				for _, body := range []io.Reader{strings.NewReader("a=1&b=2"), io.MultiReader(strings.NewReader("a=1&b=2"))} {
					if _, declared := body.(*strings.Reader); !declared && name != "form" {
						continue // without a length it cannot be told from an honest request
					}
					r := p.request(t, "k", body, "Content-Type", "application/x-www-form-urlencoded")
					a, err := p.do(r)
					require.NoError(t, err)
					requireProblem(t, a, http.StatusInternalServerError, "request_body_unreadable")
					require.Contains(t, a.Body, "by a mistake of its own", "the client made none")
					require.Equal(t, idempotency.Rejected, f.event(t).Outcome)
				}
				require.Contains(t, f.logs.String(), `"level":"ERROR"`)
				require.Zero(t, h.Load())
				require.Empty(t, store.called())
			})
		}
	})
}

// An outer layer that puts the body back, or bounds it, is no mistake.
func TestOuterLayerPutsTheBodyBack(t *testing.T) {
	onEachProtocol(t, func(t *testing.T, listen listenFunc) {
		m := newFixture(t, nil).Handler(http.HandlerFunc(echoBody))
		p := listen(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 20))
			if err != nil {
				r.Body = http.MaxBytesReader(w, io.NopCloser(io.MultiReader(bytes.NewReader(body), failing{})), 20)
			} else {
				r.Body = io.NopCloser(bytes.NewReader(body))
			}
			m.ServeHTTP(w, r)
		}))
		require.Equal(t, "hello", p.post(t, "k", "hello").Body)
		require.True(t, p.post(t, "k", "hello").replayed())
	})
}

// A layer outside that decompresses gives another length than the request announced.
func TestOuterLayerDecompresses(t *testing.T) {
	onEachProtocol(t, func(t *testing.T, listen listenFunc) {
		m := newFixture(t, nil).Handler(http.HandlerFunc(echoBody))
		p := listen(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, err := gzip.NewReader(r.Body)
			assert.NoError(t, err)
			r.Body = body
			m.ServeHTTP(w, r)
		}))
		for _, text := range []string{"x", strings.Repeat("x", 1000)} { // longer and shorter than before
			var body bytes.Buffer
			compress := gzip.NewWriter(&body)
			io.WriteString(compress, text)
			require.NoError(t, compress.Close())
			for range 2 {
				a := p.post(t, fmt.Sprint(len(text)), body.String(), "Content-Encoding", "gzip")
				require.Equal(t, text, a.Body)
			}
		}
	})
}

func TestOuterLimit(t *testing.T) {
	onEachProtocol(t, func(t *testing.T, listen listenFunc) {
		p := listen(http.MaxBytesHandler(newFixture(t, nil).Handler(&charges{}), 10))
		requireProblem(t, p.post(t, "k", "eleven byte"), http.StatusRequestEntityTooLarge, "request_body_too_large")
		require.Equal(t, http.StatusCreated, p.post(t, "k", "ten bytes.").Status)
	})
}

// A form's temporary files are removed by the server, which looks at its own request.
func TestMultipartForm(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	for _, h2c := range []bool{false, true} {
		var body bytes.Buffer
		form := multipart.NewWriter(&body)
		part, err := form.CreateFormFile("file", "a.txt")
		require.NoError(t, err)
		part.Write(bytes.Repeat([]byte("x"), 1<<10))
		require.NoError(t, form.Close())

		f := newFixture(t, nil)
		p := listen(t, h2c, f.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			assert.NoError(t, r.ParseMultipartForm(0)) // all files to disk
			files, _ := filepath.Glob(filepath.Join(dir, "multipart-*"))
			assert.Len(t, files, 1)
			file, header, err := r.FormFile("file")
			assert.NoError(t, err)
			defer file.Close()
			content, _ := io.ReadAll(file)
			fmt.Fprint(w, header.Filename, len(content))
		})))
		for range 2 {
			a := p.post(t, "k", body.String(), "Content-Type", form.FormDataContentType())
			require.Equal(t, "a.txt1024", a.Body)
		}
		p.Close() // waits for the server to be done with the requests
		left, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Empty(t, left)
	}
}
