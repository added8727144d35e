package idempotency_test

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency"
	"github.com/seed-2d1e5f61/idempotency/internal/testdb"
)

// A store that NewPostgresStore has not made, perhaps because its error was ignored, has
// no database: every call says so, and none panics.
func TestPostgresStoreThatWasNotMade(t *testing.T) {
	t.Parallel()
	resp := created("x")
	for name, s := range map[string]*idempotency.PostgresStore{"nil": nil, "zero": {}} {
		c := pgClaim("k")
		for operation, call := range map[string]func(context.Context) error{
			"Reserve":  func(ctx context.Context) error { _, err := s.Reserve(ctx, c); return err },
			"Extend":   func(ctx context.Context) error { return s.Extend(ctx, c) },
			"Complete": func(ctx context.Context) error { return s.Complete(ctx, c, resp) },
			"Release":  func(ctx context.Context) error { return s.Release(ctx, c) },
			"Resolve":  func(ctx context.Context) error { return s.Resolve(ctx, c.Key, c.Token, &resp) },
			"Stuck":    func(ctx context.Context) error { _, err := s.Stuck(ctx, 1); return err },
			"Sweep":    func(ctx context.Context) error { _, err := s.Sweep(ctx, 1); return err },
			"Migrate":  func(ctx context.Context) error { return s.Migrate(ctx) },
			"InTx":     func(ctx context.Context) error { return s.InTx(ctx, func(pgx.Tx) error { return nil }) },
		} {
			require.EqualError(t, call(t.Context()),
				"idempotency: PostgresStore."+operation+": the store was not made by NewPostgresStore", name)
		}
	}
}

// A nil that nobody could use is named, not dereferenced in a goroutine.
func TestNilArguments(t *testing.T) {
	t.Parallel()
	require.ErrorContains(t, idempotency.RunSweeper(t.Context(), nil, time.Minute), "the store is nil")
	require.ErrorContains(t, newPgFixture(t).InTx(t.Context(), nil), "InTx: the function is nil")
}

// callCounter counts the calls of a store.
type callCounter struct {
	idempotency.Store
	reserve, complete, release atomic.Int32
}

func (s *callCounter) Reserve(ctx context.Context, c idempotency.Claim) (idempotency.Record, error) {
	s.reserve.Add(1)
	return s.Store.Reserve(ctx, c)
}

func (s *callCounter) Complete(ctx context.Context, c idempotency.Claim, resp idempotency.Response) error {
	s.complete.Add(1)
	return s.Store.Complete(ctx, c, resp)
}

func (s *callCounter) Release(ctx context.Context, c idempotency.Claim) error {
	s.release.Add(1)
	return s.Store.Release(ctx, c)
}

// What no second try can mend is answered at once, and the log says what is missing.
func TestPostgresReserveThatCannotSucceed(t *testing.T) {
	t.Parallel()
	database := testdb.URL(t)
	for name, test := range map[string]struct {
		change func(*pgxpool.Config)
		want   string
	}{
		"no table":     {func(*pgxpool.Config) {}, "the table does not exist, was Migrate run?"},
		"no privilege": {runtimeParam("role", "pg_monitor"), "SQLSTATE 42501"},
		"no database":  {func(c *pgxpool.Config) { c.ConnConfig.Database = "there_is_none" }, "SQLSTATE 3D000"},
		"no password":  {func(c *pgxpool.Config) { c.ConnConfig.Password = "wrong" }, "SQLSTATE 28P01"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			table := testdb.Table(t)
			if name == "no privilege" {
				migrated, err := idempotency.NewPostgresStore(testdb.Pool(t), idempotency.PostgresConfig{Table: table})
				require.NoError(t, err)
				require.NoError(t, migrated.Migrate(t.Context()))
			}
			s, err := idempotency.NewPostgresStore(testdb.PoolAt(t, database, test.change), idempotency.PostgresConfig{Table: table})
			require.NoError(t, err)
			store, h := &callCounter{Store: s}, &charges{}
			f := newFixture(t, store, func(c *idempotency.Config) { c.StoreTimeout = 20 * time.Second })

			a := call(f.Handler(h), request("k", "{}"))
			requireProblem(t, a, http.StatusServiceUnavailable, "idempotency_unavailable")
			require.Equal(t, "1", a.Header.Get("Retry-After"))
			require.NotContains(t, a.Body, "SQLSTATE")
			require.NoError(t, f.Drain(t.Context()))
			require.EqualValues(t, 1, store.reserve.Load())
			require.EqualValues(t, 1, store.release.Load(), "a Release that cannot succeed is not repeated")
			require.Zero(t, h.Load())
			e := f.event(t)
			require.ErrorIs(t, e.Err, idempotency.ErrUnavailable)
			require.ErrorContains(t, e.Err, test.want)
			require.Contains(t, f.logs.String(), test.want)
		})
	}
}

// mended is a store whose table comes back before the second try to complete.
type mended struct {
	callCounter
	mend func()
}

func (s *mended) Complete(ctx context.Context, c idempotency.Claim, resp idempotency.Response) error {
	if s.complete.Load() == 1 {
		s.mend()
	}
	return s.callCounter.Complete(ctx, c, resp)
}

// An outcome is worth waiting for whoever mends the store, while nothing is lost by
// answering 503 to a request that was not run.
func TestPostgresRecordWaitsForWhoMendsTheStore(t *testing.T) {
	t.Parallel()
	pg := newPgFixture(t)
	store := &mended{mend: func() { pg.exec(t, "ALTER TABLE %s RENAME COLUMN hidden TO status") }}
	store.Store = pg
	f := newFixture(t, store, func(c *idempotency.Config) { c.StoreTimeout = time.Minute })
	a := call(f.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		pg.exec(t, "ALTER TABLE %s RENAME COLUMN status TO hidden")
		w.WriteHeader(http.StatusCreated)
	})), request("k", "{}"))
	require.Equal(t, http.StatusCreated, a.Status)
	require.EqualValues(t, 2, store.complete.Load())
	require.Equal(t, idempotency.Executed, f.event(t).Outcome)
}
