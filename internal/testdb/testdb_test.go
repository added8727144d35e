package testdb_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency/internal/testdb"
)

func TestEachTestHasItsOwn(t *testing.T) {
	t.Parallel()
	pool := testdb.Pool(t)
	require.NoError(t, pool.Ping(t.Context()))

	var table, database string
	t.Run("inner", func(t *testing.T) {
		table, database = testdb.Table(t), testdb.Database(t)
		require.NotEqual(t, table, testdb.Table(t))
		_, err := pool.Exec(t.Context(), "CREATE TABLE "+table+" (n int)")
		require.NoError(t, err)
		require.NoError(t, testdb.PoolAt(t, database).Ping(t.Context()))
	})

	var gone bool
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT to_regclass($1) IS NULL", table).Scan(&gone))
	require.True(t, gone, "the table outlived its test")
	_, err := pgx.Connect(t.Context(), database)
	require.ErrorContains(t, err, "3D000", "the database outlived its test")
}

func TestPgBouncerReachesTheDatabase(t *testing.T) {
	t.Parallel()
	pool := testdb.PoolAt(t, testdb.PgBouncerURL(t))
	require.NoError(t, pool.Ping(t.Context()))
}
