package redisstore

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/seed-2d1e5f61/idempotency"
	"github.com/seed-2d1e5f61/idempotency/redisstore/internal/testredis"
)

func TestCheckNamesWhatLosesRecords(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t, "maxmemory-policy allkeys-lru")
	s := open(t, server.Client(t), Config{MinReplicas: 1})
	found(t, s, ErrEviction, ErrNoAppendOnly, ErrTooFewReplicas)

	replica := testredis.Start(t)
	replica.Replicate(t, server)
	server.Do(t, "CONFIG", "SET", "maxmemory-policy", "noeviction", "appendonly", "yes")
	found(t, s)
	found(t, open(t, replica.Client(t), Config{}), ErrReplica, ErrNoAppendOnly)
	replica.Kill()
	if err := open(t, replica.Client(t), Config{}).Check(t.Context()); err == nil {
		t.Error("a server that is away passes")
	}
}

func TestCheckAsksEveryServerOfACluster(t *testing.T) {
	t.Parallel()
	cluster := testredis.StartCluster(t, "appendonly yes")
	s := open(t, cluster.Client(t), Config{MinReplicas: 1})
	found(t, s)
	cluster.Replicas[1].Do(t, "CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
	found(t, s, ErrEviction)
	cluster.Masters[2].Do(t, "CONFIG", "SET", "appendonly", "no")
	found(t, s, ErrEviction, ErrNoAppendOnly)
	found(t, open(t, cluster.Client(t), Config{MinReplicas: 2}), ErrEviction, ErrNoAppendOnly, ErrTooFewReplicas)
}

// found checks that Check finds exactly these.
func found(t *testing.T, s *Store, want ...error) {
	t.Helper()
	err := s.Check(t.Context())
	for _, kind := range []error{ErrEviction, ErrNoAppendOnly, ErrReplica, ErrTooFewReplicas} {
		if errors.Is(err, kind) != slices.Contains(want, kind) {
			t.Errorf("%v in: %v", kind, err)
		}
	}
	if len(want) == 0 && err != nil {
		t.Errorf("nothing is left to find, but: %v", err)
	}
}

// The README tells operators what to allow.
func TestTheCommandsThatAUserNeeds(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rule, _ := strings.Cut(string(readme), "ACL SETUSER app on >secret ")
	rule, _, _ = strings.Cut(rule, "\n")
	server, _ := pair(t)
	args := []any{"ACL", "SETUSER", "app", "on", ">secret"}
	for word := range strings.FieldsSeq(rule) {
		args = append(args, word)
	}
	server.Do(t, args...)
	client := redis.NewClient(&redis.Options{Addr: server.Addr, Username: "app", Password: "secret"})
	defer client.Close()
	s := deaf(open(t, client, patient))

	found(t, s, ErrNoAppendOnly)
	c, d := newClaim(), newClaim()
	reserveAs(t, s, c, idempotency.Acquired)
	done := awaitAll(t, server, s, c, 1)
	if err := s.Extend(t.Context(), c); err != nil {
		t.Error(err)
	}
	completeOf(t, s, c)
	woken(t, done)
	d.Lease = 0
	reserveAs(t, s, d, idempotency.Acquired)
	d = takeover(d)
	reserveAs(t, s, d, idempotency.Acquired)
	if err := s.Release(t.Context(), d); err != nil {
		t.Error(err)
	}
}
