package idempotency_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency"
	"github.com/seed-2d1e5f61/idempotency/internal/testdb"
)

// In the bubble it is the year 2000: the application's clock is wrong by decades.
func TestPostgresClockIsTheServers(t *testing.T) {
	t.Parallel()
	f := newPgFixture(t)
	synctest.Test(t, func(t *testing.T) {
		conn, err := pgx.Connect(t.Context(), testdb.URL(t))
		require.NoError(t, err)
		defer conn.Close(context.Background())
		require.Less(t, time.Now().Year(), 2001)

		s := f.on(t, conn)
		c := pgClaim("skewed")
		require.Greater(t, requireState(t, idempotency.Acquired, s, c).CreatedAt.Year(), 2001)
		rec := requireState(t, idempotency.InFlight, s, rival(c))
		require.InDelta(t, c.Lease.Seconds(), rec.LeaseLeft.Seconds(), 20)
		require.NoError(t, s.Extend(t.Context(), c))
		deleted, err := s.Sweep(t.Context(), 10)
		require.NoError(t, err)
		require.Zero(t, deleted)
		require.NoError(t, s.Complete(t.Context(), c, created("x")))
		requireState(t, idempotency.Completed, s, rival(c))
	})
	var lease, ttl time.Duration
	require.NoError(t, f.pool.QueryRow(t.Context(),
		"SELECT lease_until - created_at, expires_at - created_at FROM "+f.table).Scan(&lease, &ttl))
	require.Less(t, lease, time.Minute, "ended by the completion")
	require.InDelta(t, (24 * time.Hour).Seconds(), ttl.Seconds(), 1)
}

func TestPostgresLeaseCountsFromTheStatement(t *testing.T) {
	t.Parallel()
	f := newPgFixture(t)
	tx := testdb.Begin(t, f.pool)
	_, err := tx.Exec(t.Context(), "SELECT pg_sleep(0.05)")
	require.NoError(t, err)
	requireState(t, idempotency.Acquired, f.on(t, tx), pgClaim("in an old transaction"))
	var shortened bool
	require.NoError(t, tx.QueryRow(t.Context(),
		"SELECT lease_until < now() + interval '30.05 seconds' FROM "+f.table).Scan(&shortened))
	require.False(t, shortened)
}

func TestPostgresShortestLeaseIsNotNone(t *testing.T) {
	t.Parallel()
	f := newPgFixture(t)
	c := pgClaim("short")
	c.Lease, c.TTL = 1, 1
	requireState(t, idempotency.Acquired, f, c)
	require.True(t, pgScan[bool](t, f, "SELECT lease_until > created_at AND expires_at > created_at FROM %s"))
}
