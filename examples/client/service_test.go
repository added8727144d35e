package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The paths of the programs, built once.
var client, payments string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "client")
		if err != nil {
			panic(err)
		}
		defer os.RemoveAll(dir)
		client, payments = filepath.Join(dir, "client"), filepath.Join(dir, "payments")
		if out, err := exec.Command("go", "build", "-o", dir, ".", "../payments").CombinedOutput(); err != nil {
			panic(string(out))
		}
		return m.Run()
	}())
}

// service is the payment service in small: it charges once for each key.
type service struct {
	*httptest.Server
	before, after func(n int) // around the charge of the nth request; nil: nothing

	mu      sync.Mutex
	keys    []string
	charges map[string]charge // by key
}

func startService(t *testing.T, before, after func(n int)) *service {
	t.Helper()
	nothing := func(int) {}
	if before == nil {
		before = nothing
	}
	if after == nil {
		after = nothing
	}
	s := &service{before: before, after: after, charges: make(map[string]charge)}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/charges", func(w http.ResponseWriter, r *http.Request) { s.charge(t, w, r) })
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		assert.NotContains(t, r.URL.Path, "//")
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *service) charge(t *testing.T, w http.ResponseWriter, r *http.Request) {
	assert.Equal(t, "Bearer sk_test_1", r.Header.Get("Authorization"))
	assert.Equal(t, "application/json", r.Header.Get("Content-Type"))
	body, _ := io.ReadAll(r.Body)
	var order struct {
		Amount           int64
		Currency, Source string
	}
	assert.NoError(t, json.Unmarshal(body, &order), "%s", body)
	key := r.Header.Get("Idempotency-Key")

	s.mu.Lock()
	s.keys = append(s.keys, key)
	n := len(s.keys)
	s.mu.Unlock()

	s.before(n)
	if order.Source == "tok_declined" {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusPaymentRequired)
		io.WriteString(w, `{"code":"card_declined","detail":"the card\nwas declined"}`)
		return
	}
	s.mu.Lock()
	c, ok := s.charges[key]
	if !ok {
		c = charge{fmt.Sprintf("ch_%d", len(s.charges)+1), order.Amount, order.Currency, "succeeded", 1767225600}
		s.charges[key] = c
	}
	s.mu.Unlock()
	s.after(n)
	w.WriteHeader(http.StatusCreated)
	json.NewEncoder(w).Encode(c)
}

// requests returns the keys that have arrived, and how many charges were made.
func (s *service) requests() (keys []string, charges int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append(keys, s.keys...), len(s.charges)
}

// statePath is where a test's order goes.
func statePath(t *testing.T) string { return filepath.Join(t.TempDir(), "order.json") }

// inProcess runs the program in this process, where the race detector sees it.
func inProcess(t *testing.T, args ...string) (out string, err error) {
	t.Helper()
	var b strings.Builder
	err = run(t.Context(), args, "sk_test_1", &b)
	return b.String(), err
}

func savedOrder(t *testing.T, path string) order {
	t.Helper()
	o, err := load(path)
	require.NoError(t, err)
	return o
}
