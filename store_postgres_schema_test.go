package idempotency_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency"
	"github.com/seed-2d1e5f61/idempotency/internal/testdb"
)

func TestPostgresTableNames(t *testing.T) {
	t.Parallel()
	longest := strings.Repeat("a", 63)
	for _, name := range []string{"", "t", "user", "order.select", "1", "_", longest + "." + longest} {
		_, err := idempotency.NewPostgresStore(&pgxpool.Pool{}, idempotency.PostgresConfig{Table: name})
		require.NoError(t, err, name)
	}
	for _, name := range []string{
		"T", "a b", "a.b.c", ".a", "a.", ".", "a-b", `a"b`, `"a"`, "a;", "é", "a\n", "a\x00", "a;DROP TABLE b",
		"$1", "a'", "a--", longest + "a", longest + "a.b",
	} {
		_, err := idempotency.NewPostgresStore(&pgxpool.Pool{}, idempotency.PostgresConfig{Table: name})
		require.ErrorContains(t, err, "idempotency: NewPostgresStore: table", name)
	}
	for _, db := range []idempotency.PostgresDB{nil, (*pgxpool.Pool)(nil)} {
		_, err := idempotency.NewPostgresStore(db, idempotency.PostgresConfig{})
		require.ErrorContains(t, err, "no database")
	}
}

// tablesIn returns a maker of migrated stores in an empty database.
func tablesIn(t *testing.T, pool *pgxpool.Pool) func(name string) *idempotency.PostgresStore {
	return func(name string) *idempotency.PostgresStore {
		t.Helper()
		s, err := idempotency.NewPostgresStore(pool, idempotency.PostgresConfig{Table: name})
		require.NoError(t, err)
		require.NoError(t, s.Migrate(t.Context()))
		return s
	}
}

func TestPostgresTablesDoNotMeet(t *testing.T) {
	t.Parallel()
	pool := testdb.PoolAt(t, testdb.Database(t))
	makeTable := tablesIn(t, pool)
	_, err := pool.Exec(t.Context(), `CREATE SCHEMA "order"; CREATE SCHEMA other`)
	require.NoError(t, err)
	long := strings.Repeat("x", 62)
	names := []string{
		"", "user", "select", "order.select", "order.user", "other.user", "1",
		long + "a", long + "b", "other." + long + "a", long[:60], long[:50], long[:48],
	}
	for _, name := range names {
		s := makeTable(name)
		requireState(t, idempotency.Acquired, s, pgClaim("same key"))
		require.NoError(t, s.Migrate(t.Context()), "again")
	}
	var tables, indexes int
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT count(DISTINCT (schemaname, tablename)), count(*)
		FROM pg_indexes WHERE schemaname IN ('public', 'order', 'other')`).Scan(&tables, &indexes))
	require.Equal(t, len(names), tables)
	require.Equal(t, 2*len(names), indexes, "a table has no index, because another's has its name")
}

func TestPostgresMigrateCreatesNoSchema(t *testing.T) {
	t.Parallel()
	s, err := idempotency.NewPostgresStore(testdb.Pool(t), idempotency.PostgresConfig{Table: testdb.Table(t) + ".keys"})
	require.NoError(t, err)
	require.ErrorContains(t, s.Migrate(t.Context()), "3F000")
}

func TestPostgresMigratesAtOnce(t *testing.T) {
	t.Parallel()
	for _, isolation := range []string{"read committed", "serializable"} {
		t.Run(isolation, func(t *testing.T) {
			t.Parallel()
			pool := testdb.PoolAt(t, testdb.Database(t), maxConns(32), runtimeParam("default_transaction_isolation", isolation))
			_, err := pool.Exec(t.Context(), `CREATE SEQUENCE runs;
				CREATE FUNCTION count_run() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM nextval('runs'); END $$;
				CREATE EVENT TRIGGER count_run ON ddl_command_start WHEN TAG IN ('CREATE INDEX') EXECUTE FUNCTION count_run()`)
			require.NoError(t, err)
			var wg sync.WaitGroup
			for range 80 {
				wg.Go(func() {
					s, err := idempotency.NewPostgresStore(pool, idempotency.PostgresConfig{})
					if err == nil {
						err = s.Migrate(t.Context())
					}
					if err == nil {
						_, err = s.Sweep(t.Context(), 1) // who returns may use the table
					}
					if err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			var runs int
			require.NoError(t, pool.QueryRow(t.Context(), "SELECT last_value FROM runs WHERE is_called").Scan(&runs))
			require.Equal(t, 1, runs, "a lock on the table that was not needed")
		})
	}
}

// An old transaction that has used the table must not hold up a process that starts,
// nor all that would queue behind it.
func TestPostgresMigrateOfACurrentTableTakesNoLock(t *testing.T) {
	t.Parallel()
	f := newPgFixture(t)
	tx := testdb.Begin(t, f.pool)
	_, err := tx.Exec(t.Context(), "LOCK TABLE "+f.table+" IN ACCESS EXCLUSIVE MODE")
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	require.NoError(t, f.Migrate(ctx))
}

func TestPostgresSchemaIsMigrate(t *testing.T) {
	t.Parallel()
	f := newPgFixture(t)
	c := pgClaim("kept")
	requireState(t, idempotency.Acquired, f, c)
	for range 2 {
		f.exec(t, "-- %s\n"+strings.ReplaceAll(f.Schema(), "%", "%%"))
	}
	requireState(t, idempotency.InFlight, f, rival(c))

	// Alone, on an empty database, it makes the same table.
	byTool := testdb.PoolAt(t, testdb.Database(t))
	for range 2 {
		require.NoError(t, pgx.BeginFunc(t.Context(), byTool, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), f.Schema())
			return err
		}))
	}
	byMigrate := testdb.PoolAt(t, testdb.Database(t))
	tablesIn(t, byMigrate)(f.table)
	require.Equal(t, describe(t, byMigrate, f.table), describe(t, byTool, f.table))
	tool, err := idempotency.NewPostgresStore(byTool, idempotency.PostgresConfig{Table: f.table})
	require.NoError(t, err)
	require.NoError(t, tool.Migrate(t.Context()))
	requireState(t, idempotency.Acquired, tool, c)
}

// describe is all that the catalog knows of a table.
func describe(t *testing.T, pool *pgxpool.Pool, table string) (all string) {
	t.Helper()
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT concat_ws(E'\n',
			(SELECT string_agg(concat_ws(' ', attname, format_type(atttypid, atttypmod), attnotnull,
				attcompression::text, attstorage), E'\n' ORDER BY attnum)
				FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0),
			(SELECT string_agg(indexdef, E'\n' ORDER BY indexdef) FROM pg_indexes WHERE tablename = c.relname),
			array_to_string(c.reloptions, ' '), obj_description(c.oid, 'pg_class'))
		FROM pg_class AS c WHERE c.oid = to_regclass($1)`, table).Scan(&all))
	return all
}

func TestPostgresTableOptions(t *testing.T) {
	t.Parallel()
	f := newPgFixture(t)
	got := describe(t, f.pool, f.table)
	for _, want := range []string{
		"fillfactor=40", "autovacuum_vacuum_scale_factor=0.01", "idempotency schema 1", "body bytea f l x",
		"(id)", "(expires_at)",
	} {
		require.Contains(t, got, want)
	}
}

// An event trigger stands for a server that was built without lz4.
func TestPostgresMigrateWithoutLZ4(t *testing.T) {
	t.Parallel()
	pool := testdb.PoolAt(t, testdb.Database(t))
	_, err := pool.Exec(t.Context(), `
		CREATE FUNCTION refuse() RETURNS event_trigger LANGUAGE plpgsql AS $$
		BEGIN RAISE EXCEPTION 'compression method lz4 not supported' USING ERRCODE = '0A000'; END $$;
		CREATE EVENT TRIGGER refuse ON ddl_command_start WHEN TAG IN ('ALTER TABLE') EXECUTE FUNCTION refuse()`)
	require.NoError(t, err)
	s := tablesIn(t, pool)("plain")
	require.Contains(t, describe(t, pool, "plain"), "body bytea f  x")
	c := pgClaim("uncompressed")
	requireState(t, idempotency.Acquired, s, c)
	require.NoError(t, s.Complete(t.Context(), c, created(strings.Repeat("x", 10_000))))
}

func TestPostgresMigrateOfAnotherTableFails(t *testing.T) {
	t.Parallel()
	pool, table := testdb.Pool(t), testdb.Table(t)
	_, err := pool.Exec(t.Context(), fmt.Sprintf(`CREATE TABLE %s (n int)`, table))
	require.NoError(t, err)
	s, err := idempotency.NewPostgresStore(pool, idempotency.PostgresConfig{Table: table})
	require.NoError(t, err)
	require.ErrorContains(t, s.Migrate(t.Context()), "42703", "no such column")
}
