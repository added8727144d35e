package storetest_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency"
	"github.com/seed-2d1e5f61/idempotency/internal/testdb"
	"github.com/seed-2d1e5f61/idempotency/storetest"
)

func TestMemoryStore(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(*testing.T) idempotency.Store { return new(idempotency.MemoryStore) })
}

func TestPostgresStore(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T) idempotency.Store {
		return newPostgresStore(t, testdb.Pool(t))
	})
}

// Behind a pooler in transaction mode, as many have it in production.
func TestPostgresStoreThroughPgBouncer(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T) idempotency.Store {
		return newPostgresStore(t, testdb.PoolAt(t, testdb.PgBouncerURL(t), func(cfg *pgxpool.Config) {
			cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
		}))
	})
}

func newPostgresStore(t *testing.T, pool *pgxpool.Pool) idempotency.Store {
	t.Helper()
	store, err := idempotency.NewPostgresStore(pool, idempotency.PostgresConfig{Table: testdb.Table(t)})
	require.NoError(t, err)
	require.NoError(t, store.Migrate(t.Context()))
	return store
}
