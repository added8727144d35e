package redisstore

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/seed-2d1e5f61/idempotency"
	"github.com/seed-2d1e5f61/idempotency/redisstore/internal/testredis"
)

// deaf makes waiters look only when they are told to, so that a test that ends has seen
// them told.
func deaf(s *Store) *Store {
	s.waiters.firstLook, s.waiters.lastLook = time.Hour, time.Hour
	return s
}

// awaitAll has n callers wait for c's key, and returns once each is in the store and
// the server announces to it.
func awaitAll(t *testing.T, server *testredis.Server, s *Store, c idempotency.Claim, n int) <-chan error {
	t.Helper()
	done := make(chan error, n)
	for range n {
		go func() { done <- s.Await(t.Context(), c.Key) }()
	}
	name := s.name(c.Key)
	testredis.Eventually(t, "all wait and are subscribed", func() bool {
		s.waiters.mu.Lock()
		joined := len(s.waiters.byName[name])
		s.waiters.mu.Unlock()
		return joined == n && subscriptions(t, server, s) == 1 &&
			server.Do(t, "HEXISTS", name, "waited") == int64(1)
	})
	return done
}

func subscriptions(t *testing.T, server *testredis.Server, s *Store) int64 {
	t.Helper()
	return server.Do(t, "PUBSUB", "NUMSUB", s.waiters.channel).([]any)[1].(int64)
}

func woken(t *testing.T, done <-chan error) {
	t.Helper()
	select {
	case err := <-done:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("still waiting")
	}
}

func TestWaitersAreWoken(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	for end, settle := range map[string]func(*Store, idempotency.Claim) error{
		"complete": func(s *Store, c idempotency.Claim) error { return s.Complete(t.Context(), c, created) },
		"release":  func(s *Store, c idempotency.Claim) error { return s.Release(t.Context(), c) },
	} {
		t.Run(end, func(t *testing.T) {
			here := deaf(open(t, server.Client(t), Config{Prefix: end}))
			there := open(t, server.Client(t), Config{Prefix: end}) // another process
			c := newClaim()
			reserveAs(t, there, c, idempotency.Acquired)
			done := awaitAll(t, server, here, c, 20) // on one subscription
			if err := settle(there, c); err != nil {
				t.Fatal(err)
			}
			for range 20 {
				woken(t, done)
			}
		})
	}
}

func TestWaitersNoticeThatALeaseLapses(t *testing.T) {
	t.Parallel()
	s := deaf(open(t, testredis.Start(t).Client(t), Config{}))
	c := newClaim()
	c.Lease = 200 * time.Millisecond
	reserveAs(t, s, c, idempotency.Acquired)
	done := make(chan error, 1)
	go func() { done <- s.Await(t.Context(), c.Key) }()
	c.Lease = 600 * time.Millisecond
	if err := s.Extend(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	woken(t, done)
	reserveAs(t, s, rival(c), idempotency.Interrupted)
}

func TestNobodyWaitsForAKeyWithoutALiveClaim(t *testing.T) {
	t.Parallel()
	s := deaf(open(t, testredis.Start(t).Client(t), Config{}))
	c := newClaim()
	if err := s.Await(t.Context(), c.Key); err != nil {
		t.Errorf("no record: %v", err)
	}
	reserveAs(t, s, c, idempotency.Acquired)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := s.Await(ctx, c.Key); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the context ended with the claim alive: %v", err)
	}
	completeOf(t, s, c)
	if err := s.Await(t.Context(), c.Key); err != nil {
		t.Errorf("completed: %v", err)
	}
}

// An ACL that forbids the channel makes every announcement fail and ends the
// subscription. Neither may fail the completion itself.
func TestWaitersSurviveTheLossOfAnnouncements(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)

	t.Run("by looking on their own", func(t *testing.T) {
		s := open(t, server.Client(t), Config{Prefix: "look:"})
		c := newClaim()
		reserveAs(t, s, c, idempotency.Acquired)
		done := awaitAll(t, server, s, c, 1)
		server.Do(t, "ACL", "SETUSER", "default", "resetchannels")
		completeOf(t, s, c)
		woken(t, done)
	})

	t.Run("by looking when subscribed again", func(t *testing.T) {
		server.Do(t, "ACL", "SETUSER", "default", "allchannels")
		s := deaf(open(t, server.Client(t), Config{Prefix: "again:"}))
		c := newClaim()
		reserveAs(t, s, c, idempotency.Acquired)
		done := awaitAll(t, server, s, c, 1)
		server.Do(t, "ACL", "SETUSER", "default", "resetchannels")
		completeOf(t, s, c)
		server.Do(t, "ACL", "SETUSER", "default", "allchannels")
		server.Do(t, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes") // the refused subscription is one
		woken(t, done)
	})
}

func TestTheSubscriptionEndsWithItsLastWaiter(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	s := deaf(open(t, server.Client(t), Config{}))
	s.waiters.linger = 10 * time.Millisecond
	for range 2 { // and begins again
		c := newClaim()
		reserveAs(t, s, c, idempotency.Acquired)
		done := awaitAll(t, server, s, c, 3)
		completeOf(t, s, c)
		for range 3 {
			woken(t, done)
		}
		testredis.Eventually(t, "nobody is subscribed", func() bool { return subscriptions(t, server, s) == 0 })
		if len(s.waiters.byName) != 0 {
			t.Error("a waiter that left is still known")
		}
	}
}

// A client may be closed under a store: that is how a program ends.
func TestTheSubscriptionEndsWithItsClient(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	client := server.Client(t)
	s := deaf(open(t, client, Config{}))
	s.waiters.linger = time.Hour
	c := newClaim()
	reserveAs(t, s, c, idempotency.Acquired)
	done := awaitAll(t, server, s, c, 1)
	completeOf(t, s, c)
	woken(t, done)
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	testredis.Eventually(t, "nobody listens", func() bool {
		s.waiters.mu.Lock()
		defer s.waiters.mu.Unlock()
		return !s.waiters.listening
	})
}
