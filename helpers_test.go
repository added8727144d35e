package idempotency_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency"
)

// guard bounds the wait for something that must happen; no test's result depends on it.
const guard = 20 * time.Second

// fixture is a middleware with all that it tells.
type fixture struct {
	*idempotency.Middleware
	store  idempotency.Store
	events chan idempotency.Event
	logs   *logBuffer
}

// newFixture makes a middleware over store (nil: a new MemoryStore) with SingleTenant
// and what changes say.
func newFixture(t testing.TB, store idempotency.Store, changes ...func(*idempotency.Config)) *fixture {
	t.Helper()
	if store == nil {
		store = &idempotency.MemoryStore{}
	}
	f := &fixture{store: store, events: make(chan idempotency.Event, 1<<12), logs: &logBuffer{}}
	cfg := idempotency.Config{
		Tenant:  idempotency.SingleTenant,
		Observe: func(_ context.Context, e idempotency.Event) { f.events <- e },
		Logger:  slog.New(slog.NewJSONHandler(f.logs, nil)),
	}
	for _, change := range changes {
		change(&cfg)
	}
	m, err := idempotency.New(store, cfg)
	require.NoError(t, err)
	f.Middleware = m
	// A store that failed is asked again for a while, in the background.
	t.Cleanup(func() { require.NoError(t, m.Drain(context.Background())) })
	return f
}

// event returns the next event.
func (f *fixture) event(t testing.TB) idempotency.Event {
	t.Helper()
	select {
	case e := <-f.events:
		return e
	case <-time.After(guard):
		require.Fail(t, "no event")
		panic("unreachable")
	}
}

// logBuffer collects log lines.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// logLine is what a line about an attempt says.
type logLine struct {
	Level    string
	Msg      string
	KeyHash  string `json:"key_hash"`
	Endpoint string
	Attempt  int
	Error    string
}

func (b *logBuffer) lines(t testing.TB) (lines []logLine) {
	t.Helper()
	for text := range strings.Lines(b.String()) {
		var line logLine
		require.NoError(t, json.Unmarshal([]byte(text), &line))
		lines = append(lines, line)
	}
	return lines
}

// charges is a handler that counts its runs and says in its answer which one it was.
type charges struct{ atomic.Int64 }

func (c *charges) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	n := c.Add(1)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Location", fmt.Sprintf("/charges/%d", n))
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, `{"charge":%d}`, n)
}

// answer is a response, read to its end.
type answer struct {
	Status  int
	Header  http.Header
	Body    string
	Trailer http.Header
	Close   bool
	BodyErr error
}

func readAnswer(resp *http.Response) answer {
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, string(body), resp.Trailer, resp.Close, err}
}

func (a answer) replayed() bool { return a.Header.Get("Idempotent-Replayed") == "true" }

// request is POST /charges with key, or without one if it is empty, and with fields,
// names and values in turn.
func request(key, body string, fields ...string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/charges", strings.NewReader(body))
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	for i := 0; i < len(fields); i += 2 {
		r.Header.Add(fields[i], fields[i+1])
	}
	return r
}

// call serves r without a network.
func call(h http.Handler, r *http.Request) answer {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return readAnswer(w.Result())
}

// peer is a server on the loopback interface, and a client of it.
type peer struct {
	*httptest.Server
	client *http.Client
}

// onEachProtocol runs test over HTTP/1.1 and over HTTP/2 without TLS. listen starts a
// server that speaks the protocol, after changes.
func onEachProtocol(t *testing.T, test func(t *testing.T, listen listenFunc)) {
	t.Parallel()
	for _, name := range []string{"HTTP1", "h2c"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, func(h http.Handler, changes ...func(*http.Server)) *peer {
				return listen(t, name == "h2c", h, changes...)
			})
		})
	}
}

type listenFunc func(h http.Handler, changes ...func(*http.Server)) *peer

func listen(t testing.TB, h2c bool, h http.Handler, changes ...func(*http.Server)) *peer {
	t.Helper()
	var protocols http.Protocols
	protocols.SetHTTP1(!h2c)
	protocols.SetUnencryptedHTTP2(h2c)

	server := httptest.NewUnstartedServer(h)
	server.Config.Protocols = &protocols
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	for _, change := range changes {
		change(server.Config)
	}
	server.Start()
	transport := &http.Transport{Protocols: &protocols, DisableCompression: true}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		server.CloseClientConnections()
		server.Close()
	})
	client := &http.Client{Transport: transport, Timeout: guard,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return &peer{server, client}
}

// request is POST /charges at the peer's address.
func (p *peer) request(t testing.TB, key string, body io.Reader, fields ...string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.URL+"/charges", body)
	require.NoError(t, err)
	r.Header = request(key, "", fields...).Header
	return r
}

// do sends r.
func (p *peer) do(r *http.Request) (answer, error) {
	resp, err := p.client.Do(r)
	if err != nil {
		return answer{}, err
	}
	return readAnswer(resp), nil
}

// post sends POST /charges and must get an answer.
func (p *peer) post(t testing.TB, key, body string, fields ...string) answer {
	t.Helper()
	a, err := p.do(p.request(t, key, strings.NewReader(body), fields...))
	require.NoError(t, err)
	return a
}

// requireProblem checks that a is a whole problem details object.
func requireProblem(t testing.TB, a answer, status int, code string) {
	t.Helper()
	require.Equal(t, status, a.Status, a.Body)
	require.Equal(t, "application/problem+json", a.Header.Get("Content-Type"))
	require.Equal(t, "no-store", a.Header.Get("Cache-Control"))
	require.NotContains(t, a.Header, "Idempotent-Replayed")
	var problem map[string]any
	require.NoError(t, json.Unmarshal([]byte(a.Body), &problem), a.Body)
	require.EqualValues(t, status, problem["status"])
	require.Equal(t, code, problem["code"])
	require.NotEmpty(t, problem["title"])
	require.NotEmpty(t, problem["detail"])
	require.Equal(t, "about:blank", problem["type"])
	require.Len(t, problem, 5)
}

// closed closes and waits: it returns once c is closed.
func closed(t testing.TB, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(guard):
		require.Fail(t, "it did not happen")
	}
}
