package idempotency_test

import (
	"bytes"
	"crypto/sha256"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency"
)

func TestPostgresReserveWithTheSameTokenAgain(t *testing.T) {
	t.Parallel()
	f := newPgFixture(t)
	c := pgClaim("lost-reply")
	first := requireState(t, idempotency.Acquired, f, c)
	for _, lapsed := range []bool{false, true} {
		if lapsed {
			f.lapse(t)
		}
		f.exec(t, "UPDATE %s SET lease_until = lease_until - interval '20 seconds'")
		require.Equal(t, first, requireState(t, idempotency.Acquired, f, c))
		other := c
		other.Fingerprint = idempotency.Fingerprint{9}
		require.Equal(t, first, requireState(t, idempotency.Acquired, f, other), "the first request's fingerprint stands")
		left := pgScan[time.Duration](t, f, "SELECT lease_until - clock_timestamp() FROM %s")
		require.Greater(t, left, 20*time.Second, "the lease did not start anew")
	}
	require.NoError(t, f.Complete(t.Context(), c, created("done")))
	require.Equal(t, created("done"), requireState(t, idempotency.Completed, f, c).Response)
}

func TestPostgresLeaseOfAnotherNeverMoves(t *testing.T) {
	t.Parallel()
	f := newPgFixture(t)
	c := pgClaim("held")
	requireState(t, idempotency.Acquired, f, c)
	before := f.rows(t)
	other := rival(c)
	other.Lease, other.Rerun = time.Hour, true
	rec := requireState(t, idempotency.InFlight, f, other)
	require.Equal(t, before, f.rows(t))
	require.Positive(t, rec.LeaseLeft)
	require.LessOrEqual(t, rec.LeaseLeft, c.Lease)
}

func TestPostgresCompleteIsFinal(t *testing.T) {
	t.Parallel()
	f := newPgFixture(t)
	c := pgClaim("done")
	requireState(t, idempotency.Acquired, f, c)
	require.NoError(t, f.Complete(t.Context(), c, created("first")))
	before := f.rows(t)
	require.NoError(t, f.Complete(t.Context(), c, created("second")), "its reply was lost")
	require.Equal(t, idempotency.ErrClaimLost, f.Extend(t.Context(), c))
	require.Equal(t, idempotency.ErrClaimLost, f.Release(t.Context(), c))
	require.Equal(t, before, f.rows(t))
}

func TestPostgresReplayOnlyForTheSameFingerprint(t *testing.T) {
	t.Parallel()
	f := newPgFixture(t)
	c := pgClaim("reused")
	requireState(t, idempotency.Acquired, f, c)
	require.NoError(t, f.Complete(t.Context(), c, created("secret")))
	other := rival(c)
	other.Fingerprint = sha256.Sum256([]byte("another payload"))
	rec := requireState(t, idempotency.Completed, f, other)
	require.Equal(t, c.Fingerprint, rec.Fingerprint)
	require.Empty(t, rec.Response.Body)
	require.Empty(t, rec.Response.Header)
}

func TestPostgresKeysNeverMeet(t *testing.T) {
	t.Parallel()
	f := newPgFixture(t)
	for _, key := range []idempotency.Key{
		{Tenant: "ab", Endpoint: "c", Value: "d"}, {Tenant: "a", Endpoint: "bc", Value: "d"},
		{Tenant: "a", Endpoint: "b", Value: "cd"}, {Tenant: "A", Endpoint: "b", Value: "cd"},
		{Tenant: "a", Endpoint: "", Value: "bcd"}, {Tenant: "a", Endpoint: "b", Value: "cd "},
	} {
		c := pgClaim("")
		c.Key = key
		requireState(t, idempotency.Acquired, f, c)
	}
	require.Equal(t, 6, pgScan[int](t, f, "SELECT count(*) FROM %s"))
}

func TestPostgresZombieOfBeforeTheExpiry(t *testing.T) {
	t.Parallel()
	f := newPgFixture(t)
	zombie := pgClaim("expired")
	first := requireState(t, idempotency.Acquired, f, zombie)
	f.lapse(t)
	f.expire(t)
	f.requireLost(t, zombie)

	next := rival(zombie)
	next.Fingerprint = sha256.Sum256([]byte("another payload"))
	rec := requireState(t, idempotency.Acquired, f, next)
	require.Equal(t, 1, rec.Attempt)
	require.True(t, rec.CreatedAt.After(first.CreatedAt))
	require.Greater(t, pgScan[time.Duration](t, f, "SELECT expires_at - clock_timestamp() FROM %s"), 23*time.Hour)
	f.requireLost(t, zombie)
	require.NoError(t, f.Complete(t.Context(), next, created("next")))
	f.requireLost(t, zombie)

	f.expire(t) // completed: there is no lease to wait for
	require.Equal(t, 1, requireState(t, idempotency.Acquired, f, zombie).Attempt)
	require.True(t, pgScan[bool](t, f, "SELECT num_nulls(status, header, body, ref) = 4 FROM %s"), "a dead outcome is kept")
	require.NoError(t, f.Complete(t.Context(), zombie, idempotency.Response{Status: http.StatusNoContent}))
	require.Equal(t, idempotency.Response{Status: http.StatusNoContent},
		requireState(t, idempotency.Completed, f, rival(zombie)).Response, "nothing of the dead record is left")
}

func TestPostgresTakeoverAfterACrash(t *testing.T) {
	t.Parallel()
	f := newPgFixture(t)
	crashed := pgClaim("crashed")
	first := requireState(t, idempotency.Acquired, f, crashed)
	f.lapse(t)
	expiry := pgScan[time.Time](t, f, "SELECT expires_at FROM %s")

	hold := rival(crashed)
	require.Zero(t, requireState(t, idempotency.Interrupted, f, hold).LeaseLeft)
	other := rival(crashed)
	other.Rerun, other.Fingerprint = true, sha256.Sum256([]byte("another payload"))
	requireState(t, idempotency.Interrupted, f, other)

	rerun := rival(crashed)
	rerun.Rerun = true
	rec := requireState(t, idempotency.Acquired, f, rerun)
	require.Equal(t, 2, rec.Attempt)
	require.Equal(t, first.CreatedAt, rec.CreatedAt)
	require.Equal(t, expiry, pgScan[time.Time](t, f, "SELECT expires_at FROM %s"))
	f.requireLost(t, crashed)
	requireState(t, idempotency.InFlight, f, crashed)
	require.NoError(t, f.Release(t.Context(), rerun))
	require.Equal(t, 1, requireState(t, idempotency.Acquired, f, hold).Attempt)
}

func TestPostgresLapsedClaimIsItsOwnersUntilTaken(t *testing.T) {
	t.Parallel()
	f := newPgFixture(t)
	c := pgClaim("late")
	requireState(t, idempotency.Acquired, f, c)
	f.lapse(t)
	require.NoError(t, f.Extend(t.Context(), c))
	requireState(t, idempotency.InFlight, f, rival(c))
	f.lapse(t)
	require.NoError(t, f.Complete(t.Context(), c, created("late")))
	requireState(t, idempotency.Completed, f, rival(c))
}

func TestPostgresRunThatOutlivesItsTTL(t *testing.T) {
	t.Parallel()
	f := newPgFixture(t)
	c := pgClaim("long")
	requireState(t, idempotency.Acquired, f, c)
	f.expire(t)
	rerun := rival(c)
	rerun.Rerun = true
	requireState(t, idempotency.InFlight, f, rerun)
	require.NoError(t, f.Extend(t.Context(), c))
	require.NoError(t, f.Complete(t.Context(), c, created("long")))
	requireState(t, idempotency.Completed, f, rival(c))
	left := pgScan[time.Duration](t, f, "SELECT expires_at - clock_timestamp() FROM %s")
	require.InDelta(t, c.TTL.Seconds(), left.Seconds(), 60, "kept for one TTL more")
}

func TestPostgresCompleteDoesNotMoveTheExpiry(t *testing.T) {
	t.Parallel()
	f := newPgFixture(t)
	c := pgClaim("in time")
	requireState(t, idempotency.Acquired, f, c)
	expiry := pgScan[time.Time](t, f, "SELECT expires_at FROM %s")
	require.NoError(t, f.Complete(t.Context(), c, created("x")))
	require.Equal(t, expiry, pgScan[time.Time](t, f, "SELECT expires_at FROM %s"))
}

func TestPostgresSharesNoMemory(t *testing.T) {
	t.Parallel()
	f := newPgFixture(t)
	c := pgClaim("mine")
	requireState(t, idempotency.Acquired, f, c)
	resp := created("mine")
	require.NoError(t, f.Complete(t.Context(), c, resp))
	resp.Header.Set("Content-Type", "changed")
	copy(resp.Body, "XXXX")
	got := requireState(t, idempotency.Completed, f, rival(c)).Response
	require.Equal(t, created("mine"), got)
	copy(got.Body, bytes.Repeat([]byte("Y"), 4))
	require.Equal(t, created("mine"), requireState(t, idempotency.Completed, f, rival(c)).Response)
}
