package idempotency_test

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency"
	"github.com/seed-2d1e5f61/idempotency/internal/testdb"
)

// pgFixture is a migrated store in a table of the test's own, and a look behind it.
type pgFixture struct {
	*idempotency.PostgresStore
	pool  *pgxpool.Pool
	table string
}

func newPgFixture(t testing.TB, configure ...func(*pgxpool.Config)) pgFixture {
	t.Helper()
	return newPgFixtureAt(t, testdb.URL(t), configure...)
}

func newPgFixtureAt(t testing.TB, url string, configure ...func(*pgxpool.Config)) pgFixture {
	t.Helper()
	f := pgFixture{table: testdb.Table(t), pool: testdb.PoolAt(t, url, configure...)}
	f.PostgresStore = f.on(t, f.pool)
	require.NoError(t, f.Migrate(t.Context()))
	return f
}

// on is another store on the same table.
func (f pgFixture) on(t testing.TB, db idempotency.PostgresDB) *idempotency.PostgresStore {
	t.Helper()
	store, err := idempotency.NewPostgresStore(db, idempotency.PostgresConfig{Table: f.table})
	require.NoError(t, err)
	return store
}

// exec runs SQL in which %s is the table.
func (f pgFixture) exec(t testing.TB, sql string, args ...any) {
	t.Helper()
	_, err := f.pool.Exec(t.Context(), fmt.Sprintf(sql, f.table), args...)
	require.NoError(t, err)
}

func pgScan[T any](t testing.TB, f pgFixture, sql string, args ...any) (v T) {
	t.Helper()
	require.NoError(t, f.pool.QueryRow(t.Context(), fmt.Sprintf(sql, f.table), args...).Scan(&v))
	return v
}

// lapse ends every lease, as if its time were over.
func (f pgFixture) lapse(t testing.TB) {
	t.Helper()
	f.exec(t, "UPDATE %s SET lease_until = clock_timestamp() - interval '1 second' WHERE completed_at IS NULL")
}

// expire lets every TTL end, but no lease.
func (f pgFixture) expire(t testing.TB) {
	t.Helper()
	f.exec(t, "UPDATE %s SET expires_at = clock_timestamp() - interval '1 second'")
}

// rows is all that the table holds, for tests that nothing of it changes.
func (f pgFixture) rows(t testing.TB) string {
	t.Helper()
	return pgScan[string](t, f, "SELECT coalesce(string_agg(r::text, E'\\n' ORDER BY id), '') FROM %s AS r")
}

func pgClaim(value string) idempotency.Claim {
	return idempotency.Claim{
		Key:         idempotency.Key{Tenant: "acme", Endpoint: "POST /charges", Value: value},
		Fingerprint: sha256.Sum256([]byte("payload")),
		Token:       uuid.New(),
		Lease:       30 * time.Second,
		TTL:         24 * time.Hour,
	}
}

// rival is another attempt at c's key.
func rival(c idempotency.Claim) idempotency.Claim {
	c.Token = uuid.New()
	return c
}

func requireState(t testing.TB, want idempotency.State, s idempotency.Store, c idempotency.Claim) idempotency.Record {
	t.Helper()
	rec, err := s.Reserve(t.Context(), c)
	require.NoError(t, err)
	require.Equal(t, want, rec.State)
	return rec
}

// requireLost checks that c may do nothing, and does nothing.
func (f pgFixture) requireLost(t testing.TB, c idempotency.Claim) {
	t.Helper()
	before := f.rows(t)
	require.Equal(t, idempotency.ErrClaimLost, f.Extend(t.Context(), c))
	require.Equal(t, idempotency.ErrClaimLost, f.Release(t.Context(), c))
	require.Equal(t, idempotency.ErrClaimLost, f.Complete(t.Context(), c, created("zombie")))
	require.Equal(t, before, f.rows(t))
}

func created(body string) idempotency.Response {
	return idempotency.Response{
		Status: http.StatusCreated,
		Header: http.Header{"Content-Type": {"text/plain"}},
		Body:   []byte(body),
	}
}

func queryMode(mode pgx.QueryExecMode) func(*pgxpool.Config) {
	return func(cfg *pgxpool.Config) { cfg.ConnConfig.DefaultQueryExecMode = mode }
}

func runtimeParam(name, value string) func(*pgxpool.Config) {
	return func(cfg *pgxpool.Config) { cfg.ConnConfig.RuntimeParams[name] = value }
}

func maxConns(n int32) func(*pgxpool.Config) {
	return func(cfg *pgxpool.Config) { cfg.MaxConns = n }
}
