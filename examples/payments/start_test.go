package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency/internal/testdb"
)

// The paths of the programs, built once.
var payments, reconcile string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "payments")
		if err != nil {
			panic(err)
		}
		defer os.RemoveAll(dir)
		payments, reconcile = filepath.Join(dir, "payments"), filepath.Join(dir, "reconcile")
		if out, err := exec.Command("go", "build", "-o", dir, ".", "../reconcile").CombinedOutput(); err != nil {
			panic(string(out))
		}
		slog.SetDefault(slog.New(slog.DiscardHandler)) // a launched program has its own
		return m.Run()
	}())
}

type env map[string]string

// inEachMode runs test with the environment for memory and for PostgreSQL.
func inEachMode(t *testing.T, test func(t *testing.T, mode env)) {
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		test(t, env{})
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		test(t, env{"DATABASE_URL": testdb.Database(t)})
	})
}

// program is the payments service at work, in this process or in one of its own.
type program struct {
	*testing.T
	url    string
	stdout string // what it printed before it began to serve

	cmd    *exec.Cmd // of a launched one
	stderr *syncBuffer
}

// fast is what every program is started with, unless the test says otherwise.
var fast = env{"ADDR": "127.0.0.1:0", "CARD_NETWORK_LATENCY": "1ms"}

// start runs the program in this process, where the race detector sees it, and shuts it
// down with the test.
func start(t *testing.T, envs ...env) *program {
	t.Helper()
	vars := merge(append([]env{fast}, envs...))
	ctx, cancel := context.WithCancel(context.Background())
	stdout, out := io.Pipe()
	stopped := make(chan error, 1)
	go func() {
		err := run(ctx, func(name string) string { return vars[name] }, out)
		out.CloseWithError(err)
		stopped <- err
	}()
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		cancel()
		require.NoError(t, <-stopped)
	})
	p := &program{T: t}
	p.awaitWelcome(stdout)
	return p
}

// launch runs the program as a process, and kills it with the test if it is still there.
func launch(t *testing.T, envs ...env) *program {
	t.Helper()
	p := &program{T: t, cmd: exec.Command(payments), stderr: new(syncBuffer)}
	p.cmd.Env = environ(append([]env{fast}, envs...))
	p.cmd.Stderr = p.stderr
	stdout, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, p.cmd.Start())
	t.Cleanup(func() {
		if p.cmd.ProcessState == nil {
			p.cmd.Process.Kill()
			p.cmd.Wait()
		}
	})
	p.awaitWelcome(stdout)
	return p
}

func (p *program) awaitWelcome(stdout io.Reader) {
	p.Helper()
	lines := bufio.NewReader(stdout)
	for strings.Count(p.stdout, "curl") < 2 {
		line, err := lines.ReadString('\n')
		require.NoError(p, err, "it ended early: %v", p.stderr)
		p.stdout += line
	}
	go io.Copy(io.Discard, lines)
	_, after, _ := strings.Cut(p.stdout, "Listening on ")
	p.url, _, _ = strings.Cut(after, ",")
}

func merge(envs []env) env {
	all := env{}
	for _, e := range envs {
		maps.Copy(all, e)
	}
	return all
}

// environ is this process's environment without the program's variables, and with envs.
func environ(envs []env) []string {
	none := env{"ADDR": "", "DATABASE_URL": "", "CARD_NETWORK_LATENCY": "", "LEASE": "", "AFTER_CRASH": ""}
	environ := os.Environ()
	for name, value := range merge(append([]env{none}, envs...)) {
		environ = append(environ, name+"="+value)
	}
	return environ
}

// terminate asks the program to stop and waits until it has.
func (p *program) terminate() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	return p.cmd.Wait()
}

const card = `{"amount":1200,"currency":"jpy","source":"tok_visa"}`

// request is a request to the program; what is zero has a sensible value.
type request struct {
	method, path, body string // POST /v1/charges
	key                string // no Idempotency-Key
	auth               string // Bearer sk_test_alice; "none" for no such header
	contentType        string // application/json
}

type answer struct {
	status int
	header http.Header
	body   string
}

// code is the code of a problem.
func (a answer) code() string { return a.field("code") }

func (a answer) field(name string) string {
	var members map[string]any
	json.Unmarshal([]byte(a.body), &members)
	value, _ := members[name].(string)
	return value
}

func (a answer) replayed() bool { return a.header.Get("Idempotent-Replayed") == "true" }

func (p *program) do(r request) answer {
	p.Helper()
	a, err := p.try(p.Context(), http.DefaultClient, r)
	require.NoError(p, err)
	return a
}

func (p *program) post(key, body string) answer {
	p.Helper()
	return p.do(request{key: key, body: body})
}

func (p *program) try(ctx context.Context, client *http.Client, r request) (answer, error) {
	or := func(s, otherwise string) string {
		if s == "" {
			return otherwise
		}
		return s
	}
	req, err := http.NewRequestWithContext(ctx, or(r.method, "POST"), p.url+or(r.path, "/v1/charges"), strings.NewReader(r.body))
	if err != nil {
		return answer{}, err
	}
	req.Header.Set("Content-Type", or(r.contentType, "application/json"))
	if r.auth != "none" {
		req.Header.Set("Authorization", or(r.auth, "Bearer sk_test_alice"))
	}
	if r.key != "" {
		req.Header.Set("Idempotency-Key", r.key)
	}
	resp, err := client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, string(body)}, err
}

// charges returns the ids of alice's charges.
func (p *program) charges() []string {
	p.Helper()
	a := p.do(request{method: "GET"})
	require.Equal(p, 200, a.status)
	var list struct {
		Data []struct{ ID string }
	}
	require.NoError(p, json.Unmarshal([]byte(a.body), &list))
	require.NotNil(p, list.Data, "an empty list is [], not null")
	var ids []string
	for _, c := range list.Data {
		ids = append(ids, c.ID)
	}
	return ids
}

// result is what try returns.
type result struct {
	answer
	err error
}

// inFlight sends r twice at once. It returns when the loser is told that the key is in
// flight; the winner, which is running then, sends its result through the channel.
func (p *program) inFlight(ctx context.Context, client *http.Client, r request) <-chan result {
	p.Helper()
	results := make(chan result, 2)
	for range 2 {
		go func() {
			a, err := p.try(ctx, client, r)
			results <- result{a, err}
		}()
	}
	loser := <-results
	require.NoError(p, loser.err)
	require.Equal(p, "idempotency_key_in_flight", loser.code())
	return results
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
