package idempotency_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
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

// everyResponse is what a column type, an encoding or a query mode could lose.
func everyResponse() map[string]idempotency.Response {
	binary := make([]byte, 100_000)
	rand.NewChaCha8([32]byte{}).Read(binary)
	return map[string]idempotency.Response{
		"empty":      {Status: http.StatusNoContent},
		"empty body": {Status: http.StatusOK, Body: []byte{}},
		"omitted":    {Status: http.StatusOK, Omitted: true},
		"ref":        {Status: http.StatusOK, Ref: "a\x00'\\\xff"},
		"binary":     {Status: http.StatusOK, Body: binary},
		"text": {
			Status:   http.StatusTeapot,
			Header:   http.Header{"Link": {"</a>, </b>", "", "</c>"}, "Etag": {`"\'` + "\xff"}, "X-None": {}},
			Appended: []string{"Link"},
			Body:     []byte(`'\'; $1 \x00` + "\x00\r\n"),
		},
	}
}

// requireLifecycle goes through every statement of s.
func requireLifecycle(t *testing.T, f pgFixture) {
	for name, resp := range everyResponse() {
		c := pgClaim(name + ` '\ $1 é`)
		rec := requireState(t, idempotency.Acquired, f, c)
		require.Equal(t, 1, rec.Attempt)
		require.NoError(t, f.Extend(t.Context(), c))
		requireState(t, idempotency.InFlight, f, rival(c))
		require.NoError(t, f.Complete(t.Context(), c, resp))
		again := requireState(t, idempotency.Completed, f, rival(c))
		require.Equal(t, resp, again.Response, name)
		require.Equal(t, rec.CreatedAt, again.CreatedAt)
		require.Equal(t, c.Fingerprint, again.Fingerprint)
		f.requireLost(t, rival(c))
	}
	c := pgClaim("interrupted")
	requireState(t, idempotency.Acquired, f, c)
	f.lapse(t)
	requireState(t, idempotency.Interrupted, f, rival(c))
	stuck, err := f.Stuck(t.Context(), 10)
	require.NoError(t, err)
	require.Len(t, stuck, 1)
	second := rival(c)
	second.Rerun = true
	require.Equal(t, 2, requireState(t, idempotency.Acquired, f, second).Attempt)
	require.NoError(t, f.Release(t.Context(), second))
	requireState(t, idempotency.Acquired, f, c)
	f.lapse(t)
	resp := created("resolved")
	require.NoError(t, f.Resolve(t.Context(), c.Key, c.Token, &resp))
	require.Equal(t, resp, requireState(t, idempotency.Completed, f, rival(c)).Response)

	f.expire(t)
	requireState(t, idempotency.Acquired, f, c)
	deleted, err := f.Sweep(t.Context(), 100)
	require.NoError(t, err)
	require.Equal(t, len(everyResponse()), deleted)
	require.NoError(t, f.Release(t.Context(), c))
	require.Empty(t, f.rows(t))
}

func TestPostgresStoreWithEveryQueryMode(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			requireLifecycle(t, newPgFixture(t, queryMode(mode)))
		})
	}
}

func TestPostgresStoreBehindPgBouncer(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			f := newPgFixtureAt(t, testdb.PgBouncerURL(t), queryMode(mode), maxConns(16))
			requireLifecycle(t, f)
			// More clients than the pooler has servers: every statement may go elsewhere.
			var wg sync.WaitGroup
			for i := range 64 {
				wg.Go(func() { runOnce(t, f, pgClaim(fmt.Sprint("key-", i))) })
			}
			wg.Wait()
		})
	}
}

// runOnce is a fresh request and its replay.
func runOnce(t *testing.T, s idempotency.Store, c idempotency.Claim) {
	rec, err := s.Reserve(t.Context(), c)
	if err != nil || rec.State != idempotency.Acquired {
		t.Errorf("fresh: %v, %v", rec.State, err)
		return
	}
	if err := s.Complete(t.Context(), c, created(c.Key.Value)); err != nil {
		t.Errorf("complete: %v", err)
	}
	rec, err = s.Reserve(t.Context(), rival(c))
	if err != nil || rec.State != idempotency.Completed || string(rec.Response.Body) != c.Key.Value {
		t.Errorf("replay: %v %q, %v", rec.State, rec.Response.Body, err)
	}
}

func TestPostgresReserveWithTheSameTokenAgain(t *testing.T) {
	t.Parallel()
	f := newPgFixture(t)
	c := pgClaim("lost-reply")
	first := requireState(t, idempotency.Acquired, f, c)
	for _, lapsed := range []bool{false, true} {
		if lapsed {
			f.lapse(t)
		}
		f.exec(t, "UPDATE %s SET lease_until = lease_until - interval '20 seconds'")
		require.Equal(t, first, requireState(t, idempotency.Acquired, f, c))
		left := pgScan[time.Duration](t, f, "SELECT lease_until - clock_timestamp() FROM %s")
		require.Greater(t, left, 20*time.Second, "the lease did not start anew")
	}
	require.NoError(t, f.Complete(t.Context(), c, created("done")))
	require.Equal(t, created("done"), requireState(t, idempotency.Completed, f, c).Response)
}

func TestPostgresLeaseOfAnotherNeverMoves(t *testing.T) {
	t.Parallel()
	f := newPgFixture(t)
	c := pgClaim("held")
	requireState(t, idempotency.Acquired, f, c)
	before := f.rows(t)
	other := rival(c)
	other.Lease, other.Rerun = time.Hour, true
	rec := requireState(t, idempotency.InFlight, f, other)
	require.Equal(t, before, f.rows(t))
	require.Positive(t, rec.LeaseLeft)
	require.LessOrEqual(t, rec.LeaseLeft, c.Lease)
}

func TestPostgresCompleteIsFinal(t *testing.T) {
	t.Parallel()
	f := newPgFixture(t)
	c := pgClaim("done")
	requireState(t, idempotency.Acquired, f, c)
	require.NoError(t, f.Complete(t.Context(), c, created("first")))
	before := f.rows(t)
	require.NoError(t, f.Complete(t.Context(), c, created("second")), "its reply was lost")
	require.Equal(t, idempotency.ErrClaimLost, f.Extend(t.Context(), c))
	require.Equal(t, idempotency.ErrClaimLost, f.Release(t.Context(), c))
	require.Equal(t, before, f.rows(t))
}

func TestPostgresReplayOnlyForTheSameFingerprint(t *testing.T) {
	t.Parallel()
	f := newPgFixture(t)
	c := pgClaim("reused")
	requireState(t, idempotency.Acquired, f, c)
	require.NoError(t, f.Complete(t.Context(), c, created("secret")))
	other := rival(c)
	other.Fingerprint = sha256.Sum256([]byte("another payload"))
	rec := requireState(t, idempotency.Completed, f, other)
	require.Equal(t, c.Fingerprint, rec.Fingerprint)
	require.Empty(t, rec.Response.Body)
	require.Empty(t, rec.Response.Header)
}

func TestPostgresKeysNeverMeet(t *testing.T) {
	t.Parallel()
	f := newPgFixture(t)
	for _, key := range []idempotency.Key{
		{Tenant: "ab", Endpoint: "c", Value: "d"}, {Tenant: "a", Endpoint: "bc", Value: "d"},
		{Tenant: "a", Endpoint: "b", Value: "cd"}, {Tenant: "A", Endpoint: "b", Value: "cd"},
		{Tenant: "a", Endpoint: "", Value: "bcd"}, {Tenant: "a", Endpoint: "b", Value: "cd "},
	} {
		c := pgClaim("")
		c.Key = key
		requireState(t, idempotency.Acquired, f, c)
	}
	require.Equal(t, 6, pgScan[int](t, f, "SELECT count(*) FROM %s"))
}

func TestPostgresZombieOfBeforeTheExpiry(t *testing.T) {
	t.Parallel()
	f := newPgFixture(t)
	zombie := pgClaim("expired")
	first := requireState(t, idempotency.Acquired, f, zombie)
	f.lapse(t)
	f.expire(t)
	f.requireLost(t, zombie)

	next := rival(zombie)
	next.Fingerprint = sha256.Sum256([]byte("another payload"))
	rec := requireState(t, idempotency.Acquired, f, next)
	require.Equal(t, 1, rec.Attempt)
	require.True(t, rec.CreatedAt.After(first.CreatedAt))
	require.Greater(t, pgScan[time.Duration](t, f, "SELECT expires_at - clock_timestamp() FROM %s"), 23*time.Hour)
	f.requireLost(t, zombie)
	require.NoError(t, f.Complete(t.Context(), next, created("next")))
	f.requireLost(t, zombie)

	f.expire(t) // completed: there is no lease to wait for
	require.Equal(t, 1, requireState(t, idempotency.Acquired, f, zombie).Attempt)
	require.True(t, pgScan[bool](t, f, "SELECT num_nulls(status, header, body, ref) = 4 FROM %s"), "a dead outcome is kept")
	require.NoError(t, f.Complete(t.Context(), zombie, idempotency.Response{Status: http.StatusNoContent}))
	require.Equal(t, idempotency.Response{Status: http.StatusNoContent},
		requireState(t, idempotency.Completed, f, rival(zombie)).Response, "nothing of the dead record is left")
}

func TestPostgresTakeoverAfterACrash(t *testing.T) {
	t.Parallel()
	f := newPgFixture(t)
	crashed := pgClaim("crashed")
	first := requireState(t, idempotency.Acquired, f, crashed)
	f.lapse(t)
	expiry := pgScan[time.Time](t, f, "SELECT expires_at FROM %s")

	hold := rival(crashed)
	require.Zero(t, requireState(t, idempotency.Interrupted, f, hold).LeaseLeft)
	other := rival(crashed)
	other.Rerun, other.Fingerprint = true, sha256.Sum256([]byte("another payload"))
	requireState(t, idempotency.Interrupted, f, other)

	rerun := rival(crashed)
	rerun.Rerun = true
	rec := requireState(t, idempotency.Acquired, f, rerun)
	require.Equal(t, 2, rec.Attempt)
	require.Equal(t, first.CreatedAt, rec.CreatedAt)
	require.Equal(t, expiry, pgScan[time.Time](t, f, "SELECT expires_at FROM %s"))
	f.requireLost(t, crashed)
	requireState(t, idempotency.InFlight, f, crashed)
	require.NoError(t, f.Release(t.Context(), rerun))
	require.Equal(t, 1, requireState(t, idempotency.Acquired, f, hold).Attempt)
}

func TestPostgresLapsedClaimIsItsOwnersUntilTaken(t *testing.T) {
	t.Parallel()
	f := newPgFixture(t)
	c := pgClaim("late")
	requireState(t, idempotency.Acquired, f, c)
	f.lapse(t)
	require.NoError(t, f.Extend(t.Context(), c))
	requireState(t, idempotency.InFlight, f, rival(c))
	f.lapse(t)
	require.NoError(t, f.Complete(t.Context(), c, created("late")))
	requireState(t, idempotency.Completed, f, rival(c))
}

func TestPostgresRunThatOutlivesItsTTL(t *testing.T) {
	t.Parallel()
	f := newPgFixture(t)
	c := pgClaim("long")
	requireState(t, idempotency.Acquired, f, c)
	f.expire(t)
	rerun := rival(c)
	rerun.Rerun = true
	requireState(t, idempotency.InFlight, f, rerun)
	require.NoError(t, f.Extend(t.Context(), c))
	require.NoError(t, f.Complete(t.Context(), c, created("long")))
	requireState(t, idempotency.Completed, f, rival(c))
	left := pgScan[time.Duration](t, f, "SELECT expires_at - clock_timestamp() FROM %s")
	require.InDelta(t, c.TTL.Seconds(), left.Seconds(), 60, "kept for one TTL more")
}

func TestPostgresCompleteDoesNotMoveTheExpiry(t *testing.T) {
	t.Parallel()
	f := newPgFixture(t)
	c := pgClaim("in time")
	requireState(t, idempotency.Acquired, f, c)
	expiry := pgScan[time.Time](t, f, "SELECT expires_at FROM %s")
	require.NoError(t, f.Complete(t.Context(), c, created("x")))
	require.Equal(t, expiry, pgScan[time.Time](t, f, "SELECT expires_at FROM %s"))
}

// In the bubble it is the year 2000: the application's clock is wrong by decades.
func TestPostgresClockIsTheServers(t *testing.T) {
	t.Parallel()
	f := newPgFixture(t)
	synctest.Test(t, func(t *testing.T) {
		conn, err := pgx.Connect(t.Context(), testdb.URL(t))
		require.NoError(t, err)
		defer conn.Close(context.Background())
		require.Less(t, time.Now().Year(), 2001)

		s := f.on(t, conn)
		c := pgClaim("skewed")
		require.Greater(t, requireState(t, idempotency.Acquired, s, c).CreatedAt.Year(), 2001)
		rec := requireState(t, idempotency.InFlight, s, rival(c))
		require.InDelta(t, c.Lease.Seconds(), rec.LeaseLeft.Seconds(), 20)
		require.NoError(t, s.Extend(t.Context(), c))
		deleted, err := s.Sweep(t.Context(), 10)
		require.NoError(t, err)
		require.Zero(t, deleted)
		require.NoError(t, s.Complete(t.Context(), c, created("x")))
		requireState(t, idempotency.Completed, s, rival(c))
	})
	var lease, ttl time.Duration
	require.NoError(t, f.pool.QueryRow(t.Context(),
		"SELECT lease_until - created_at, expires_at - created_at FROM "+f.table).Scan(&lease, &ttl))
	require.Less(t, lease, time.Minute, "ended by the completion")
	require.InDelta(t, (24 * time.Hour).Seconds(), ttl.Seconds(), 1)
}

func TestPostgresLeaseCountsFromTheStatement(t *testing.T) {
	t.Parallel()
	f := newPgFixture(t)
	tx := testdb.Begin(t, f.pool)
	_, err := tx.Exec(t.Context(), "SELECT pg_sleep(0.05)")
	require.NoError(t, err)
	requireState(t, idempotency.Acquired, f.on(t, tx), pgClaim("in an old transaction"))
	var shortened bool
	require.NoError(t, tx.QueryRow(t.Context(),
		"SELECT lease_until < now() + interval '30.05 seconds' FROM "+f.table).Scan(&shortened))
	require.False(t, shortened)
}

func TestPostgresShortestLeaseIsNotNone(t *testing.T) {
	t.Parallel()
	f := newPgFixture(t)
	c := pgClaim("short")
	c.Lease, c.TTL = 1, 1
	requireState(t, idempotency.Acquired, f, c)
	require.True(t, pgScan[bool](t, f, "SELECT lease_until > created_at AND expires_at > created_at FROM %s"))
}

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

func TestPostgresSharesNoMemory(t *testing.T) {
	t.Parallel()
	f := newPgFixture(t)
	c := pgClaim("mine")
	requireState(t, idempotency.Acquired, f, c)
	resp := created("mine")
	require.NoError(t, f.Complete(t.Context(), c, resp))
	resp.Header.Set("Content-Type", "changed")
	copy(resp.Body, "XXXX")
	got := requireState(t, idempotency.Completed, f, rival(c)).Response
	require.Equal(t, created("mine"), got)
	copy(got.Body, bytes.Repeat([]byte("Y"), 4))
	require.Equal(t, created("mine"), requireState(t, idempotency.Completed, f, rival(c)).Response)
}
