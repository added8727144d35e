package idempotency_test

import (
	"context"
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
	direct := func(t *testing.T) *pgxpool.Pool { return testdb.Pool(t) }
	bouncer := func(t *testing.T) *pgxpool.Pool { return testdb.PoolAt(t, testdb.PgBouncerURL(t), exec) }
	for name, c := range map[string]struct {
		pool      func(t *testing.T) *pgxpool.Pool
		cfg       idempotency.PostgresConfig
		crowded   bool
		elsewhere bool
	}{
		"grouped":                    {pool: direct},
		"crowded":                    {pool: direct, crowded: true},
		"ungrouped":                  {pool: direct, cfg: idempotency.PostgresConfig{Ungrouped: true}},
		"retried at another process": {pool: direct, elsewhere: true},
		"through PgBouncer":          {pool: bouncer},
		"crowded through PgBouncer":  {pool: bouncer, crowded: true},
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
				if c.crowded {
					store.Crowd()
				}
				if c.elsewhere {
					return elsewhere{store, pool, cfg}
				}
				return store
			})
		})
	}
}

// elsewhere reserves each time in a store, and so a process, that has met no key before.
type elsewhere struct {
	*idempotency.PostgresStore
	pool *pgxpool.Pool
	cfg  idempotency.PostgresConfig
}

func (e elsewhere) Reserve(ctx context.Context, c idempotency.Claim) (idempotency.Record, error) {
	store, err := idempotency.NewPostgresStore(e.pool, e.cfg)
	if err != nil {
		return idempotency.Record{}, err
	}
	return store.Reserve(ctx, c)
}
