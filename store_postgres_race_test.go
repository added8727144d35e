package idempotency_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency"
	"github.com/seed-2d1e5f61/idempotency/internal/testdb"
)

// race lets n attempts reserve c's key at once and returns how many met each state.
func race(t *testing.T, s idempotency.Store, n int, c idempotency.Claim) map[idempotency.State]int {
	t.Helper()
	states := make([]idempotency.State, n)
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			claim := rival(c)
			<-start
			rec, err := s.Reserve(t.Context(), claim)
			if err != nil {
				t.Errorf("reserve: %v", err)
			}
			states[i] = rec.State
		})
	}
	close(start)
	wg.Wait()
	count := make(map[idempotency.State]int)
	for _, state := range states {
		count[state]++
	}
	return count
}

func TestPostgresHotKeyHasOneOwner(t *testing.T) {
	t.Parallel()
	const racers = 200
	want := map[idempotency.State]int{idempotency.Acquired: 1, idempotency.InFlight: racers - 1}
	for _, isolation := range []string{"read committed", "repeatable read", "serializable"} {
		t.Run(isolation, func(t *testing.T) {
			t.Parallel()
			f := newPgFixture(t, maxConns(24), runtimeParam("default_transaction_isolation", isolation))
			for round := range 3 {
				c := pgClaim(fmt.Sprint("hot-", round))
				c.Rerun = true
				require.Equal(t, want, race(t, f, racers, c), "fresh")
				f.lapse(t)
				require.Equal(t, want, race(t, f, racers, c), "after a crash")
				f.lapse(t)
				f.expire(t)
				require.Equal(t, want, race(t, f, racers, c), "after the expiry")
			}
		})
	}
}

// Attempts that release, complete and take over one key in every order never own it
// two at a time, and whoever owned it could say so until its end.
func TestPostgresOwnersNeverOverlap(t *testing.T) {
	t.Parallel()
	f := newPgFixture(t, maxConns(16))
	var owners atomic.Int32
	var wg sync.WaitGroup
	for worker := range 16 {
		wg.Go(func() {
			for i := 0; i < 5 && !t.Failed(); {
				c := pgClaim("churned")
				c.TTL = time.Microsecond // dead as soon as it is completed
				rec, err := f.Reserve(t.Context(), c)
				if err != nil {
					t.Errorf("reserve: %v", err)
				}
				if rec.State != idempotency.Acquired {
					continue
				}
				if owners.Add(1) != 1 {
					t.Error("two owners")
				}
				i++
				err = f.Extend(t.Context(), c)
				owners.Add(-1)
				if err == nil && (worker+i)%2 == 0 {
					err = f.Release(t.Context(), c)
				} else if err == nil {
					err = f.Complete(t.Context(), c, created("x"))
				}
				if err != nil {
					t.Errorf("an owner was not let: %v", err)
				}
			}
		})
	}
	wg.Wait()
}

// failures counts statements by the SQLSTATE that they failed with.
type failures struct {
	mu    sync.Mutex
	codes map[string]int
}

func (f *failures) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

func (f *failures) TraceQueryEnd(_ context.Context, _ *pgx.Conn, data pgx.TraceQueryEndData) {
	if pgErr, ok := data.Err.(*pgconn.PgError); ok {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.codes == nil {
			f.codes = make(map[string]int)
		}
		f.codes[pgErr.Code]++
	}
}

func (f *failures) count(code string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.codes[code]
}

func (f *failures) trace(cfg *pgxpool.Config) { cfg.ConnConfig.Tracer = f }

// waitUntilBlocked returns when n connections of that name wait for a lock.
func waitUntilBlocked(t *testing.T, application string, n int) {
	t.Helper()
	pool := testdb.Pool(t)
	require.Eventually(t, func() bool {
		var blocked int
		err := pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity
			WHERE application_name = $1 AND wait_event_type = 'Lock'`, application).Scan(&blocked)
		return err == nil && blocked == n
	}, 30*time.Second, 5*time.Millisecond)
}

func TestPostgresRetriesSerializationFailures(t *testing.T) {
	t.Parallel()
	var seen failures
	name := t.Name()
	f := newPgFixture(t, seen.trace, runtimeParam("default_transaction_isolation", "repeatable read"),
		runtimeParam("application_name", name))
	tx := testdb.Begin(t, testdb.Pool(t))
	c := pgClaim("contended")
	requireState(t, idempotency.Acquired, f.on(t, tx), c)

	met := make(chan idempotency.State)
	go func() {
		rec, err := f.Reserve(t.Context(), rival(c))
		if err != nil {
			t.Errorf("reserve: %v", err)
		}
		met <- rec.State
	}()
	waitUntilBlocked(t, name, 1)
	require.NoError(t, tx.Commit(t.Context()))
	require.Equal(t, idempotency.InFlight, <-met)
	require.Equal(t, 1, seen.count("40001"), "nothing was retried: the test is void")
}

// A trigger fails the first statements as a deadlock would: one that the store's single
// statements cannot run into alone.
func TestPostgresRetriesDeadlocksButNotForever(t *testing.T) {
	t.Parallel()
	var seen failures
	f := newPgFixture(t, seen.trace)
	c := pgClaim("deadlocked")
	requireState(t, idempotency.Acquired, f, c)
	f.exec(t, `CREATE FUNCTION %[1]s_deadlock() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			IF nextval('%[1]s_n') <= 2 THEN RAISE EXCEPTION 'deadlock' USING ERRCODE = '40P01'; END IF;
			RETURN coalesce(NEW, OLD);
		END $$`)
	f.exec(t, "CREATE SEQUENCE %s_n MINVALUE -1000")
	f.exec(t, `CREATE TRIGGER deadlock BEFORE UPDATE OR DELETE ON %[1]s
		FOR EACH ROW EXECUTE FUNCTION %[1]s_deadlock()`)
	t.Cleanup(func() {
		_, err := f.pool.Exec(context.Background(),
			fmt.Sprintf("DROP FUNCTION %[1]s_deadlock CASCADE; DROP SEQUENCE %[1]s_n", f.table))
		require.NoError(t, err)
	})
	failNext := func(n int) { f.exec(t, "SELECT setval('%s_n', $1, false)", 3-n) }
	healed := func(op func() error) {
		t.Helper()
		before := seen.count("40P01")
		failNext(2)
		require.NoError(t, op())
		require.Equal(t, before+2, seen.count("40P01"))
	}
	healed(func() error { return f.Extend(t.Context(), c) })
	healed(func() error { return f.Complete(t.Context(), c, created("x")) })
	failNext(0)
	f.expire(t)
	healed(func() error { _, err := f.Reserve(t.Context(), c); return err })
	healed(func() error { return f.Release(t.Context(), c) })
	requireState(t, idempotency.Acquired, f, c)

	before := seen.count("40P01")
	failNext(1000)
	require.ErrorContains(t, f.Extend(t.Context(), c), "40P01")
	require.Equal(t, before+9, seen.count("40P01"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, f.Extend(ctx, c), context.Canceled)
}

func TestPostgresReserveGivesUpWithItsContext(t *testing.T) {
	t.Parallel()
	f := newPgFixture(t, runtimeParam("application_name", t.Name()))
	tx := testdb.Begin(t, testdb.Pool(t))
	c := pgClaim("waited for")
	requireState(t, idempotency.Acquired, f.on(t, tx), c)

	ctx, cancel := context.WithCancel(t.Context())
	waiting := rival(c)
	left := make(chan error)
	go func() {
		_, err := f.Reserve(ctx, waiting)
		left <- err
	}()
	waitUntilBlocked(t, t.Name(), 1)
	cancel()
	require.ErrorIs(t, <-left, context.Canceled)
	require.NoError(t, tx.Rollback(t.Context()))
	// Its INSERT may have gone through all the same: only its own token tells.
	requireState(t, idempotency.Acquired, f, waiting)
	require.NoError(t, f.Release(t.Context(), waiting))
	requireState(t, idempotency.Acquired, f, rival(c))
}

// The truth about a completion is known when the transaction around it has ended.
func TestPostgresCompleteWaitsForATransactionThatCompletes(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(pgx.Tx, context.Context) error{"commit": pgx.Tx.Commit, "rollback": pgx.Tx.Rollback} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newPgFixture(t, runtimeParam("application_name", t.Name()))
			c := pgClaim("in a transaction")
			requireState(t, idempotency.Acquired, f, c)
			tx, err := testdb.Pool(t).Begin(t.Context())
			require.NoError(t, err)
			require.NoError(t, f.on(t, tx).Complete(t.Context(), c, created("inside")))

			outside := make(chan error)
			go func() { outside <- f.Complete(t.Context(), c, created("outside")) }()
			waitUntilBlocked(t, t.Name(), 1)
			require.NoError(t, end(tx, t.Context()))
			require.NoError(t, <-outside)
			want := map[string]string{"commit": "inside", "rollback": "outside"}[name]
			require.Equal(t, created(want), requireState(t, idempotency.Completed, f, rival(c)).Response)
		})
	}
}
