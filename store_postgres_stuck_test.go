package idempotency_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency"
)

func requireStuck(t *testing.T, f pgFixture, limit int) []idempotency.StuckClaim {
	t.Helper()
	stuck, err := f.Stuck(t.Context(), limit)
	require.NoError(t, err)
	return stuck
}

func TestPostgresStuckListsInterruptedClaims(t *testing.T) {
	t.Parallel()
	f := newPgFixture(t)
	var claims []idempotency.Claim
	for i := range 3 {
		c := pgClaim(fmt.Sprint("stuck-", i))
		requireState(t, idempotency.Acquired, f, c)
		claims = append(claims, c)
	}
	completed, expired, running := pgClaim("completed"), pgClaim("expired"), pgClaim("running")
	requireState(t, idempotency.Acquired, f, completed)
	require.NoError(t, f.Complete(t.Context(), completed, created("x")))
	requireState(t, idempotency.Acquired, f, expired)
	f.lapse(t)
	f.exec(t, "UPDATE %s SET expires_at = now() WHERE key = 'expired'")
	requireState(t, idempotency.Acquired, f, running)

	stuck := requireStuck(t, f, 10)
	require.Len(t, stuck, 3)
	for i, c := range claims {
		got := stuck[i]
		require.WithinRange(t, got.LapsedAt, got.CreatedAt.Add(-time.Minute), got.CreatedAt.Add(29*time.Second))
		require.Equal(t, idempotency.StuckClaim{
			Key: c.Key, Fingerprint: c.Fingerprint, Token: c.Token, Attempt: 1,
			CreatedAt: got.CreatedAt, LapsedAt: got.LapsedAt, ExpiresAt: got.ExpiresAt,
		}, got)
		require.InDelta(t, c.TTL.Seconds(), got.ExpiresAt.Sub(got.CreatedAt).Seconds(), 1)
	}
	require.Equal(t, stuck[:2], requireStuck(t, f, 2), "the oldest first")
	_, err := f.Stuck(t.Context(), 0)
	require.ErrorContains(t, err, "limit must be positive")
}

func TestPostgresResolve(t *testing.T) {
	t.Parallel()
	f := newPgFixture(t)
	c := pgClaim("stuck")
	requireState(t, idempotency.Acquired, f, c)
	resp := everyResponse()["text"]
	settle := map[string]*idempotency.Response{"record": &resp, "free": nil}
	refused := func(key idempotency.Key, token uuid.UUID, why string) {
		t.Helper()
		before := f.rows(t)
		for name, resp := range settle {
			require.Equal(t, idempotency.ErrClaimLost, f.Resolve(t.Context(), key, token, resp), name+": "+why)
		}
		require.Equal(t, before, f.rows(t), why)
	}
	refused(c.Key, c.Token, "still running")
	f.lapse(t)
	refused(c.Key, uuid.New(), "another token")
	refused(pgClaim("other").Key, c.Token, "another key")
	require.NoError(t, f.Extend(t.Context(), c))
	refused(c.Key, c.Token, "came alive again")

	f.lapse(t)
	require.ErrorContains(t, f.Resolve(t.Context(), c.Key, c.Token, &idempotency.Response{Status: 1000}), "status 1000")
	require.Len(t, requireStuck(t, f, 10), 1)
	expiry := pgScan[time.Time](t, f, "SELECT expires_at FROM %s")
	require.NoError(t, f.Resolve(t.Context(), c.Key, c.Token, &resp))
	require.Equal(t, resp, requireState(t, idempotency.Completed, f, rival(c)).Response)
	require.Equal(t, expiry, pgScan[time.Time](t, f, "SELECT expires_at FROM %s"))
	refused(c.Key, c.Token, "resolved already")
	f.requireLost(t, c) // its attempt wakes up at last: the outcome is not its own
	require.Empty(t, requireStuck(t, f, 10))
}

func TestPostgresResolveFreesTheKey(t *testing.T) {
	t.Parallel()
	f := newPgFixture(t)
	c := pgClaim("stuck")
	requireState(t, idempotency.Acquired, f, c)
	f.lapse(t)
	require.NoError(t, f.Resolve(t.Context(), c.Key, c.Token, nil))
	require.Empty(t, f.rows(t))
	next := rival(c)
	require.Equal(t, 1, requireState(t, idempotency.Acquired, f, next).Attempt)
	f.requireLost(t, c)

	f.lapse(t)
	f.expire(t)
	require.Equal(t, idempotency.ErrClaimLost, f.Resolve(t.Context(), c.Key, next.Token, nil), "dead")
}

func TestPostgresResolveBesideATakeover(t *testing.T) {
	t.Parallel()
	f := newPgFixture(t)
	resp := created("resolved")
	for round := range 20 {
		c := pgClaim(fmt.Sprint("stuck-", round))
		requireState(t, idempotency.Acquired, f, c)
		f.lapse(t)
		var settled atomic.Int32
		var wg sync.WaitGroup
		for i := range 9 {
			wg.Go(func() {
				var err error
				won := false
				switch i % 3 {
				case 0:
					err = f.Resolve(t.Context(), c.Key, c.Token, &resp)
					won = err == nil
				case 1:
					err = f.Resolve(t.Context(), c.Key, c.Token, nil)
					won = err == nil
				default:
					retry := rival(c)
					retry.Rerun = true
					var rec idempotency.Record
					rec, err = f.Reserve(t.Context(), retry)
					won = rec.State == idempotency.Acquired && rec.Attempt == 2
				}
				if won {
					settled.Add(1)
				} else if err != nil && err != idempotency.ErrClaimLost {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		require.EqualValues(t, 1, settled.Load(), "round %d", round)
	}
}
