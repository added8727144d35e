// Package testdb gives tests a real PostgreSQL: the throw-away server that
// scripts/test.sh starts.
package testdb

import (
	"context"
	"crypto/rand"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	databaseVariable  = "IDEMPOTENCY_TEST_DATABASE_URL"
	pgbouncerVariable = "IDEMPOTENCY_TEST_PGBOUNCER_URL"
)

// URL returns the connection string of a PostgreSQL superuser. Without a server it
// ends the test: as failed where the variable CI is set, as skipped elsewhere.
func URL(t testing.TB) string {
	t.Helper()
	return fromEnv(t, databaseVariable, "PostgreSQL")
}

// PgBouncerURL returns the same database's connection string through PgBouncer in
// transaction mode. Without it the test ends as in URL.
func PgBouncerURL(t testing.TB) string {
	t.Helper()
	return fromEnv(t, pgbouncerVariable, "PgBouncer")
}

func fromEnv(t testing.TB, variable, server string) string {
	t.Helper()
	if url := os.Getenv(variable); url != "" {
		return url
	}
	if os.Getenv("CI") != "" {
		t.Fatalf("%s is not set: this test needs %s; run ./scripts/test.sh", variable, server)
	}
	t.Skipf("SKIPPED WITHOUT %s: run ./scripts/test.sh, which starts one", strings.ToUpper(server))
	return ""
}

// Pool returns a pool on URL that is closed with the test. Each configure may change
// its configuration.
func Pool(t testing.TB, configure ...func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	return PoolAt(t, URL(t), configure...)
}

// PoolAt is Pool for another connection string.
func PoolAt(t testing.TB, url string, configure ...func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	for _, change := range configure {
		change(cfg)
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// Begin begins a transaction that is rolled back with the test, if it is still open.
func Begin(t testing.TB, pool *pgxpool.Pool) pgx.Tx {
	t.Helper()
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

// Table returns the name of a table that no other test uses, and drops that table, if
// there is one, with the test.
func Table(t testing.TB) string {
	t.Helper()
	name := unique()
	t.Cleanup(func() { exec(t, "DROP TABLE IF EXISTS "+name) })
	return name
}

// Database creates an empty database of the test's own, dropped with it, and returns
// its connection string.
func Database(t testing.TB) string {
	t.Helper()
	u, err := url.Parse(URL(t))
	if err != nil {
		t.Fatal(err)
	}
	name := unique()
	exec(t, "CREATE DATABASE "+name)
	t.Cleanup(func() { exec(t, "DROP DATABASE "+name+" WITH (FORCE)") })
	u.Path = "/" + name
	return u.String()
}

func unique() string { return "test_" + strings.ToLower(rand.Text()) }

// exec runs one statement on a connection of its own. The test's context has ended
// when it cleans up.
func exec(t testing.TB, sql string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, URL(t))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, sql); err != nil {
		t.Error(err)
	}
}
