package idempotency_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency"
	"github.com/seed-2d1e5f61/idempotency/internal/testdb"
	"github.com/seed-2d1e5f61/idempotency/storetest"
)

func TestPostgresStoreConforms(t *testing.T) {
	t.Parallel()
	exec := func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec }
	for name, c := range map[string]struct {
		pool func(t *testing.T) *pgxpool.Pool
		cfg  idempotency.PostgresConfig
	}{
		"grouped":   {func(t *testing.T) *pgxpool.Pool { return testdb.Pool(t) }, idempotency.PostgresConfig{}},
		"ungrouped": {func(t *testing.T) *pgxpool.Pool { return testdb.Pool(t) }, idempotency.PostgresConfig{Ungrouped: true}},
		"through PgBouncer": {func(t *testing.T) *pgxpool.Pool { return testdb.PoolAt(t, testdb.PgBouncerURL(t), exec) },
			idempotency.PostgresConfig{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := c.pool(t)
			storetest.Run(t, func(t *testing.T) idempotency.Store {
				cfg := c.cfg
				cfg.Table = testdb.Table(t)
				store, err := idempotency.NewPostgresStore(pool, cfg)
				require.NoError(t, err)
				require.NoError(t, store.Migrate(t.Context()))
				return store
			})
		})
	}
}
