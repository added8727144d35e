package idempotency_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency"
	"github.com/seed-2d1e5f61/idempotency/internal/testdb"
)

// addDead inserts n completed records that expired a second and more ago.
func (f pgFixture) addDead(t testing.TB, n int) {
	t.Helper()
	f.exec(t, `INSERT INTO %s (id, tenant, endpoint, key, fingerprint, token, attempt,
			created_at, lease_until, expires_at, completed_at)
		SELECT gen_random_uuid(), 't', 'e', 'k', '', gen_random_uuid(), 1,
			now() - interval '1 day', now() - interval '1 day', now() - n * interval '1 second', now()
		FROM generate_series(1, $1::int) AS n`, n)
}

func (f pgFixture) count(t testing.TB) int {
	t.Helper()
	return pgScan[int](t, f, "SELECT count(*) FROM %s")
}

func requireSwept(t testing.TB, want int, f pgFixture, limit int) {
	t.Helper()
	deleted, err := f.Sweep(t.Context(), limit)
	require.NoError(t, err)
	require.Equal(t, want, deleted)
}

func TestPostgresSweepDeletesTheDeadAlone(t *testing.T) {
	t.Parallel()
	f := newPgFixture(t)
	running, lapsed, completed := pgClaim("running"), pgClaim("lapsed"), pgClaim("completed")
	for _, c := range []idempotency.Claim{lapsed, completed} {
		requireState(t, idempotency.Acquired, f, c)
	}
	require.NoError(t, f.Complete(t.Context(), completed, created("x")))
	f.lapse(t)
	requireState(t, idempotency.Acquired, f, running)
	requireSwept(t, 0, f, 10)

	f.expire(t)
	requireSwept(t, 2, f, 10)
	requireState(t, idempotency.InFlight, f, rival(running))
	require.NoError(t, f.Extend(t.Context(), running), "a handler that outlives its TTL keeps its key")
	f.lapse(t)
	requireSwept(t, 1, f, 10)
	require.Zero(t, f.count(t))
}

func TestPostgresSweepLimit(t *testing.T) {
	t.Parallel()
	f := newPgFixture(t)
	f.addDead(t, 25)
	requireSwept(t, 10, f, 10)
	requireSwept(t, 10, f, 10)
	requireSwept(t, 5, f, 10)
	requireSwept(t, 0, f, 10)
	for _, limit := range []int{0, -1} {
		_, err := f.Sweep(t.Context(), limit)
		require.ErrorContains(t, err, "idempotency: PostgresStore.Sweep: limit")
	}
}

// A batch starts where the last one ended, but what died before that is not forgotten.
func TestPostgresSweepFindsWhatDiedBehindIt(t *testing.T) {
	t.Parallel()
	f := newPgFixture(t)
	late := pgClaim("late")
	requireState(t, idempotency.Acquired, f, late)
	f.exec(t, "UPDATE %s SET expires_at = now() - interval '1 hour'")
	f.addDead(t, 5)
	requireSwept(t, 3, f, 3)
	f.lapse(t)
	requireSwept(t, 3, f, 10)
	require.Zero(t, f.count(t))
}

func TestPostgresSweepsAtOnce(t *testing.T) {
	t.Parallel()
	f := newPgFixture(t)
	f.addDead(t, 3000)
	var total atomic.Int64
	var wg sync.WaitGroup
	for range 4 {
		s := f.on(t, f.pool)
		wg.Go(func() {
			for range 60 {
				deleted, err := s.Sweep(t.Context(), 50)
				if err != nil {
					t.Error(err)
				}
				total.Add(int64(deleted))
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, 3000, total.Load())
	require.Zero(t, f.count(t))
}

func TestPostgresSweepWaitsForNobody(t *testing.T) {
	t.Parallel()
	f := newPgFixture(t)
	f.addDead(t, 3)
	c := pgClaim("reserved again")
	requireState(t, idempotency.Acquired, f, c)
	f.lapse(t)
	f.expire(t)

	tx := testdb.Begin(t, f.pool)
	next := rival(c)
	requireState(t, idempotency.Acquired, f.on(t, tx), next)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	deleted, err := f.Sweep(ctx, 10)
	require.NoError(t, err)
	require.Equal(t, 3, deleted)
	require.NoError(t, tx.Commit(t.Context()))
	requireSwept(t, 0, f, 10)
	require.NoError(t, f.Extend(t.Context(), next))
}

// Keys die, are reserved again and swept, all at once: a claim that was acquired is
// never deleted.
func TestPostgresSweepBesideTraffic(t *testing.T) {
	t.Parallel()
	f := newPgFixture(t, maxConns(12))
	ctx, stop := context.WithCancel(t.Context())
	var sweepers, workers sync.WaitGroup
	var swept atomic.Int64
	for range 2 {
		s := f.on(t, f.pool)
		sweepers.Go(func() {
			for ctx.Err() == nil {
				deleted, err := s.Sweep(t.Context(), 3)
				if err != nil {
					t.Error(err)
				}
				swept.Add(int64(deleted))
			}
		})
	}
	for worker := range 8 {
		workers.Go(func() {
			for range 50 {
				c := pgClaim(fmt.Sprint("key-", worker))
				c.TTL = time.Microsecond // dead as soon as it is completed
				rec, err := f.Reserve(t.Context(), c)
				if err != nil || rec.State != idempotency.Acquired {
					t.Errorf("reserve: %v, %v", rec.State, err)
				}
				if err := f.Extend(t.Context(), c); err != nil {
					t.Errorf("extend: %v", err)
				}
				if err := f.Complete(t.Context(), c, created("x")); err != nil {
					t.Errorf("complete: %v", err)
				}
			}
		})
	}
	workers.Wait()
	stop()
	sweepers.Wait()
	require.Positive(t, swept.Load())
}

func TestRunSweeperOnPostgres(t *testing.T) {
	t.Parallel()
	f := newPgFixture(t)
	f.addDead(t, 2500)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- idempotency.RunSweeper(ctx, f, time.Millisecond) }()
	require.Eventually(t, func() bool { return f.count(t) == 0 }, 30*time.Second, 10*time.Millisecond)
	f.addDead(t, 10)
	require.Eventually(t, func() bool { return f.count(t) == 0 }, 30*time.Second, 10*time.Millisecond)
	cancel()
	require.Equal(t, context.Canceled, <-ended)
}

type sweeperFunc func(ctx context.Context, limit int) (int, error)

func (f sweeperFunc) Sweep(ctx context.Context, limit int) (int, error) { return f(ctx, limit) }

func TestRunSweeperGoesOnAfterAFailure(t *testing.T) { // not parallel: it has the default logger
	var log bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	defer slog.SetDefault(before)

	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 150*time.Second)
		defer cancel()
		start := time.Now()
		var at []time.Duration
		err := idempotency.RunSweeper(ctx, sweeperFunc(func(_ context.Context, limit int) (int, error) {
			at = append(at, time.Since(start))
			switch len(at) {
			case 1:
				return limit, nil // there is more
			case 2:
				return 0, errors.New("down")
			}
			return limit - 1, nil
		}), time.Minute)
		require.Equal(t, context.DeadlineExceeded, err)
		const pause = 50 * time.Millisecond
		require.Equal(t, []time.Duration{0, pause, time.Minute + pause, 2*time.Minute + pause}, at)
	})
	require.Equal(t, 1, bytes.Count(log.Bytes(), []byte("level=WARN")))
	require.Contains(t, log.String(), "idempotency: sweep failed")
	require.Contains(t, log.String(), "error=down")
}

func TestRunSweeperEndsWithItsContext(t *testing.T) { // not parallel: it has the default logger
	var log bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	defer slog.SetDefault(before)

	ctx, cancel := context.WithCancel(t.Context())
	err := idempotency.RunSweeper(ctx, sweeperFunc(func(ctx context.Context, _ int) (int, error) {
		cancel()
		return 0, ctx.Err()
	}), time.Hour)
	require.Equal(t, context.Canceled, err)
	require.Empty(t, log.String(), "to end is no failure")
	require.ErrorContains(t, idempotency.RunSweeper(t.Context(), nil, 0), "interval must be positive")
}

// While an old snapshot is open, the index leads to all that was deleted since.
func BenchmarkPostgresSweepUnderAnOldSnapshot(b *testing.B) {
	f := newPgFixture(b)
	old := testdb.Begin(b, testdb.Pool(b))
	_, err := old.Exec(b.Context(), "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT 1")
	require.NoError(b, err)
	f.addDead(b, 1000*b.N)
	b.ResetTimer()
	for range b.N {
		requireSwept(b, 1000, f, 1000)
	}
}
