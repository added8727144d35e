package redisstore

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seed-2d1e5f61/idempotency"
	"github.com/seed-2d1e5f61/idempotency/redisstore/internal/testredis"
)

// A server that refuses writes must neither give a key away nor lose a claim.
func TestRefusedWrites(t *testing.T) {
	t.Parallel()
	for refusal, server := range map[string]func(t *testing.T) (s *testredis.Server, refuse, heal func()){
		"OOM":      full,
		"READONLY": demoted,
		"MISCONF":  unsaved,
	} {
		t.Run(refusal, func(t *testing.T) {
			t.Parallel()
			server, refuse, heal := server(t)
			s := open(t, server.Client(t), Config{})
			running, done, fresh := newClaim(), newClaim(), newClaim()
			reserveAs(t, s, running, idempotency.Acquired)
			reserveAs(t, s, done, idempotency.Acquired)
			completeOf(t, s, done)

			refuse()
			if rec, err := s.Reserve(t.Context(), fresh); err == nil {
				t.Errorf("a key was given away: %+v", rec)
			}
			if err := s.Complete(t.Context(), running, created); err == nil {
				t.Error("a completion was acknowledged")
			}
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			if err := s.Await(ctx, running.Key); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("who only waits is refused too: %v", err)
			}
			status, ran := post(t, s)
			if status != http.StatusServiceUnavailable || ran {
				t.Errorf("answered %d, handler called: %v; want 503 and nothing run", status, ran)
			}
			heal()

			reserveAs(t, s, rival(running), idempotency.InFlight)
			completeOf(t, s, running)
			reserveAs(t, s, rival(done), idempotency.Completed)
			reserveAs(t, s, rival(fresh), idempotency.Acquired)
		})
	}
}

// post sends a request with a new key through a middleware on s.
func post(t *testing.T, s *Store) (status int, ran bool) {
	t.Helper()
	m, err := idempotency.New(s, idempotency.Config{
		Tenant: idempotency.SingleTenant, StoreTimeout: 200 * time.Millisecond,
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(m.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { ran = true })))
	defer server.Close()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Idempotency-Key", idempotency.NewKey())
	resp, err := server.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	return resp.StatusCode, ran
}

func full(t *testing.T) (s *testredis.Server, refuse, heal func()) {
	s = testredis.Start(t)
	return s, func() { s.Do(t, "CONFIG", "SET", "maxmemory", "1") },
		func() { s.Do(t, "CONFIG", "SET", "maxmemory", "0") }
}

func demoted(t *testing.T) (s *testredis.Server, refuse, heal func()) {
	s = testredis.Start(t)
	return s, func() { s.Do(t, "REPLICAOF", "127.0.0.1", "1") }, // a master that never answers
		func() { s.Do(t, "REPLICAOF", "NO", "ONE") }
}

func unsaved(t *testing.T) (s *testredis.Server, refuse, heal func()) {
	s = testredis.Start(t)
	if err := os.MkdirAll(filepath.Join(s.Dir, "dump.rdb", "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	refuse = func() {
		s.Do(t, "CONFIG", "SET", "save", "3600 1")
		s.Do(t, "BGSAVE")
		testredis.Eventually(t, "saving fails", func() bool {
			info, _ := parseInfo(s.Do(t, "INFO", "persistence").(string))
			return info["rdb_last_bgsave_status"] == "err"
		})
	}
	return s, refuse, func() { s.Do(t, "CONFIG", "SET", "save", "") }
}

// With appendfsync everysec either may happen: while the disk is busy, Redis keeps
// writes that it has acknowledged to itself for up to two seconds.
func TestRestart(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		config   []string
		snapshot bool
		keeps    bool
	}{
		"appendonly, each write synced": {config: []string{"appendonly yes", "appendfsync always"}, keeps: true},
		"nothing":                       {keeps: false},
		"a snapshot before":             {snapshot: true, keeps: true},
		"a snapshot too early":          {config: []string{"save 3600 1"}, keeps: false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testredis.Start(t, tc.config...)
			s := open(t, server.Client(t), Config{})
			running, done := newClaim(), newClaim()
			reserveAs(t, s, running, idempotency.Acquired)
			reserveAs(t, s, done, idempotency.Acquired)
			completeOf(t, s, done)
			if tc.snapshot {
				server.Do(t, "SAVE")
			}
			server.Kill()
			if status, ran := post(t, s); status != http.StatusServiceUnavailable || ran {
				t.Errorf("the server is away: answered %d, handler called: %v", status, ran)
			}
			server.Restart(t)

			if tc.keeps {
				reserveAs(t, s, rival(running), idempotency.InFlight)
				reserveAs(t, s, rival(done), idempotency.Completed)
			} else {
				reserveAs(t, s, rival(running), idempotency.Acquired)
				reserveAs(t, s, rival(done), idempotency.Acquired)
			}
		})
	}
}
