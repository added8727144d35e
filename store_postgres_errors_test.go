package idempotency_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency"
	"github.com/seed-2d1e5f61/idempotency/internal/testdb"
)

func TestPostgresErrorsHideTheKey(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeSimpleProtocol} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			f := newPgFixture(t, queryMode(mode))
			c := pgClaim("raw-key")
			requireState(t, idempotency.Acquired, f, c)
			for _, bad := range []string{"raw-key\x00", "raw-key\xff"} {
				unstorable := pgClaim(bad)
				_, err := f.Reserve(t.Context(), unstorable)
				require.ErrorContains(t, err, "cannot be stored")
				require.NotContains(t, err.Error(), "raw-key")
			}
			f.exec(t, "ALTER TABLE %s ADD CHECK (key <> 'raw-key') NOT VALID")
			_, checked := f.Reserve(t.Context(), c)
			f.exec(t, "ALTER TABLE %s RENAME COLUMN id TO gone")
			_, reserve := f.Reserve(t.Context(), c)
			resp := created("x")
			for name, err := range map[string]error{
				"checked": checked, "reserve": reserve, "extend": f.Extend(t.Context(), c),
				"complete": f.Complete(t.Context(), c, resp), "release": f.Release(t.Context(), c),
				"resolve": f.Resolve(t.Context(), c.Key, c.Token, &resp),
				"free":    f.Resolve(t.Context(), c.Key, c.Token, nil),
			} {
				require.ErrorContains(t, err, "idempotency: PostgresStore.", name)
				require.NotErrorIs(t, err, idempotency.ErrClaimLost, name)
				require.NotContains(t, err.Error(), "raw-key", name)
			}
		})
	}
}

func TestPostgresUnreachable(t *testing.T) {
	t.Parallel()
	testdb.URL(t)
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and never says a word
	require.NoError(t, err)
	refused, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, refused.Close())
	defer silent.Close()

	for name, address := range map[string]string{"silent": silent.Addr().String(), "refused": refused.Addr().String()} {
		pool := testdb.PoolAt(t, "postgres://u:p@"+address+"/db?sslmode=disable")
		store, err := idempotency.NewPostgresStore(pool, idempotency.PostgresConfig{})
		require.NoError(t, err, "no I/O")
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		start := time.Now()
		_, err = store.Reserve(ctx, pgClaim("raw-key"))
		require.ErrorContains(t, err, "idempotency: PostgresStore.Reserve", name)
		require.NotContains(t, err.Error(), "raw-key", name)
		require.Less(t, time.Since(start), 10*time.Second, name)
		require.Error(t, store.Complete(ctx, pgClaim("raw-key"), created("x")), name)
		require.Error(t, store.Migrate(ctx), name)
		cancel()
	}
}
