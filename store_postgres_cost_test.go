package idempotency

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency/internal/testdb"
)

func newCostStore(t testing.TB, configure ...func(*pgxpool.Config)) (*PostgresStore, *pgxpool.Pool) {
	t.Helper()
	pool := testdb.Pool(t, configure...)
	s, err := NewPostgresStore(pool, PostgresConfig{Table: testdb.Table(t)})
	require.NoError(t, err)
	require.NoError(t, s.Migrate(t.Context()))
	return s, pool
}

func costReserve(t testing.TB, s *PostgresStore, c Claim, want State) {
	t.Helper()
	rec, err := s.Reserve(t.Context(), c)
	require.NoError(t, err)
	require.Equal(t, want, rec.State)
}

// trips counts what goes to the server and back.
type trips struct{ n atomic.Int64 }

func (c *trips) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	c.n.Add(1)
	return ctx
}

func (c *trips) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	c.n.Add(1)
	return ctx
}

func (c *trips) TracePrepareStart(ctx context.Context, _ *pgx.Conn, _ pgx.TracePrepareStartData) context.Context {
	c.n.Add(1)
	return ctx
}

func (*trips) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData)     {}
func (*trips) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (*trips) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}
func (*trips) TracePrepareEnd(context.Context, *pgx.Conn, pgx.TracePrepareEndData) {}
func (c *trips) trace(cfg *pgxpool.Config)                                         { cfg.ConnConfig.Tracer, cfg.MaxConns = c, 1 }
func (c *trips) of(op func()) int64                                                { before := c.n.Load(); op(); return c.n.Load() - before }

func TestPostgresRoundTrips(t *testing.T) {
	t.Parallel()
	var count trips
	s, _ := newCostStore(t, count.trace)
	elsewhere := func() *PostgresStore { // another process, which has met no key
		return &PostgresStore{db: s.db, table: s.table, sql: s.sql, recent: new(recentKeys)}
	}
	complete := func(c Claim) { require.NoError(t, s.Complete(t.Context(), c, costResponse())) }
	for i := range 2 { // the first time each statement is prepared as well
		c, freed := costClaim(2*i), costClaim(2*i+1)
		other := elsewhere()
		got := map[string]int64{
			"fresh":               count.of(func() { costReserve(t, s, c, Acquired) }),
			"in flight":           count.of(func() { costReserve(t, s, another(c), InFlight) }),
			"in flight elsewhere": count.of(func() { costReserve(t, elsewhere(), another(c), InFlight) }),
			"extend":              count.of(func() { require.NoError(t, s.Extend(t.Context(), c)) }),
			"complete":            count.of(func() { complete(c) }),
			"replay":              count.of(func() { costReserve(t, s, another(c), Completed) }),
			"replay elsewhere":    count.of(func() { costReserve(t, other, another(c), Completed) }),
			"and once more":       count.of(func() { costReserve(t, other, another(c), Completed) }),
			"before a release":    count.of(func() { costReserve(t, s, freed, Acquired) }),
			"release":             count.of(func() { require.NoError(t, s.Release(t.Context(), freed)) }),
			"after a release":     count.of(func() { costReserve(t, s, another(freed), Acquired) }),
		}
		if i == 1 {
			require.Equal(t, map[string]int64{
				"fresh": 1, "in flight": 1, "in flight elsewhere": 2, "extend": 1, "complete": 1,
				"replay": 1, "replay elsewhere": 2, "and once more": 1,
				"before a release": 1, "release": 1, "after a release": 1,
			}, got)
		}
	}
}

// A store that thinks it knows a key's record looks for it in vain once, and inserts.
func TestPostgresRecordGoneWithoutTheStoreKnowing(t *testing.T) {
	t.Parallel()
	var count trips
	s, pool := newCostStore(t, count.trace)
	gone := func(c Claim) {
		_, err := pool.Exec(t.Context(), "DELETE FROM "+s.table.quoted()+" WHERE id = $1::uuid", uuidOf(c.Key.id()))
		require.NoError(t, err)
	}
	for i := range 2 {
		c := costClaim(i)
		costReserve(t, s, c, Acquired)
		require.NoError(t, s.Complete(t.Context(), c, costResponse()))
		costReserve(t, s, another(c), Completed)
		gone(c)
		got := count.of(func() { costReserve(t, s, another(c), Acquired) })
		if i == 1 { // the first time each statement is prepared as well
			require.EqualValues(t, 2, got)
		}
	}
}

// The position in the WAL is the whole server's, so another test may move it; a replay
// that writes would move it every time.
func TestPostgresReplayWritesNothing(t *testing.T) {
	t.Parallel()
	s, pool := newCostStore(t)
	c := costClaim(0)
	costReserve(t, s, c, Acquired)
	inFlight := costClaim(1)
	costReserve(t, s, inFlight, Acquired)
	require.NoError(t, s.Complete(t.Context(), c, costResponse()))
	position := func() (bytes int64) {
		require.NoError(t, pool.QueryRow(t.Context(), "SELECT pg_current_wal_insert_lsn() - '0/0'").Scan(&bytes))
		return bytes
	}
	require.Eventually(t, func() bool {
		before := position()
		costReserve(t, s, another(c), Completed)
		costReserve(t, s, another(inFlight), InFlight)
		return position() == before
	}, time.Minute, time.Millisecond)
}

func TestPostgresCompletionTouchesNoIndex(t *testing.T) {
	t.Parallel()
	const requests, callers = 2000, 16
	s, pool := newCostStore(t)
	var next atomic.Int64
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for n := next.Add(1); n <= requests; n = next.Add(1) {
				c := costClaim(int(n))
				if rec, err := s.Reserve(t.Context(), c); err != nil || rec.State != Acquired {
					t.Errorf("reserve: %v, %v", rec.State, err)
				}
				if err := s.Complete(t.Context(), c, costResponse()); err != nil {
					t.Errorf("complete: %v", err)
				}
			}
		})
	}
	wg.Wait()
	pool.Close() // each connection reports its counts when it ends, at the latest

	var updates, hot int
	reader := testdb.Pool(t)
	require.Eventually(t, func() bool {
		err := reader.QueryRow(t.Context(), `SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables
			WHERE relid = to_regclass($1)`, s.table.quoted()).Scan(&updates, &hot)
		return err == nil && updates == requests
	}, time.Minute, 10*time.Millisecond)
	t.Logf("HOT share of completions: %.3f", float64(hot)/requests)
	require.GreaterOrEqual(t, float64(hot)/requests, 0.8)
}

// Plans must not depend on what the planner knows of the values: after five executions
// it may settle for one plan for all.
func TestPostgresPlans(t *testing.T) {
	t.Parallel()
	s, pool := newCostStore(t)
	conn, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	exec := func(sql string) {
		_, err := conn.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	exec(fmt.Sprintf(`INSERT INTO %s (id, tenant, endpoint, key, fingerprint, token, attempt,
			created_at, lease_until, expires_at, completed_at, body)
		SELECT gen_random_uuid(), 'tenant', 'POST /v1/charges', n::text, sha256(n::text::bytea), gen_random_uuid(), 1,
			now(), now(), now() + (n - 1000) * interval '1 second', now(), sha256(n::text::bytea)
		FROM generate_series(1, 100000) AS n`, s.table.quoted()))
	exec("ANALYZE " + s.table.quoted())

	const (
		byKey = `gen_random_uuid(), `
		token = `gen_random_uuid(), `
		print = `'\x00', `
	)
	const outcome = `200, '\x00', '\x00', '\x00', false, `
	statements := []struct{ name, sql, args, types string }{
		{"find", s.sql.find, byKey + print, "uuid, bytea"},
		{"find together", s.sql.findTogether, `ARRAY[gen_random_uuid(), gen_random_uuid()], '{"\\\\x00","\\\\x00"}', `, "uuid[], bytea[]"},
		{"replace", s.sql.replace, byKey + token + print + "1, 1, ", "uuid, uuid, bytea, bigint, bigint"},
		{"retake", s.sql.retake, byKey + token + print + "1, ", "uuid, uuid, bytea, bigint"},
		{"extend", s.sql.extend, byKey + token + "1, ", "uuid, uuid, bigint"},
		{"complete", s.sql.complete, byKey + token + outcome + "1, ", "uuid, uuid, integer, bytea, bytea, bytea, boolean, bigint"},
		{"completed", s.sql.completed, byKey + token, "uuid, uuid"},
		{"release", s.sql.release, byKey + token, "uuid, uuid"},
		{"resolve", s.sql.resolve, byKey + token + outcome + token, "uuid, uuid, integer, bytea, bytea, bytea, boolean, uuid"},
		{"free", s.sql.free, byKey + token, "uuid, uuid"},
		{"sweep", s.sql.sweep, "NULL, 1000, ", "timestamptz, bigint"},
		{"sweep from", s.sql.sweep, "now() - interval '10 minutes', 1000, ", "timestamptz, bigint"},
	}
	for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
		exec("SET plan_cache_mode = " + mode)
		for _, statement := range statements {
			exec(fmt.Sprintf("PREPARE p (%s) AS %s", statement.types, statement.sql))
			rows, err := conn.Query(t.Context(), "EXPLAIN EXECUTE p ("+strings.TrimSuffix(statement.args, ", ")+")",
				pgx.QueryExecModeSimpleProtocol)
			require.NoError(t, err)
			lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
			require.NoError(t, err)
			plan := strings.Join(lines, "\n")
			where := fmt.Sprintf("%s, %s:\n%s", statement.name, mode, plan)
			require.NotContains(t, plan, "Seq Scan", where)
			require.NotContains(t, plan, "Sort", where)
			if strings.HasPrefix(statement.name, "sweep") {
				require.Regexp(t, `Index Cond: .*expires_at <= \$`, plan, where)
			} else {
				require.Regexp(t, `Index Cond: \(id = `, plan, where)
			}
			exec("DEALLOCATE p")
		}
	}
}

// A server keeps the plan of a prepared statement. What was right for an empty table would
// read one that has grown since once for every call of a crowd, until its next ANALYZE.
func TestPostgresPlansOfATableThatHasGrown(t *testing.T) {
	t.Parallel()
	s, pool := newCostStore(t)
	_, err := pool.Exec(t.Context(), "ALTER TABLE "+s.table.quoted()+" SET (autovacuum_enabled = false)")
	require.NoError(t, err)
	tx, err := pool.Begin(t.Context()) // one connection, and counts of its own
	require.NoError(t, err)
	defer tx.Rollback(t.Context())
	s.db = tx

	outcomes, looks := make([]outcome, 40), make([]look, 40)
	for i := range outcomes {
		c := costClaim(i)
		outcomes[i], looks[i] = outcomeOf(c, costResponse()), look{uuidOf(c.Key.id()), c.Fingerprint}
	}
	crowd := func() {
		_, err := s.findTogether(t.Context(), looks)
		require.NoError(t, err)
		_, err = s.completeTogether(t.Context(), outcomes)
		require.NoError(t, err)
	}
	read := func() (rows int) {
		require.NoError(t, tx.QueryRow(t.Context(), `SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables
			WHERE relid = to_regclass($1)`, s.table.quoted()).Scan(&rows))
		return rows
	}
	grow := func(from, to int) {
		_, err = tx.Exec(t.Context(), fmt.Sprintf(`INSERT INTO %s (id, tenant, endpoint, key, fingerprint, token, attempt,
			created_at, lease_until, expires_at)
			SELECT gen_random_uuid(), 'tenant', 'POST /v1/charges', n::text, sha256(n::text::bytea), gen_random_uuid(), 1,
				now(), now() + interval '1 day', now() + interval '1 day'
			FROM generate_series($1::bigint, $2::bigint) AS n`, s.table.quoted()), from, to)
		require.NoError(t, err)
	}
	grow(1, 500)
	for range 10 { // after the sixth execution at the latest the server keeps its plan
		crowd()
	}
	grow(501, 10000)
	before := read()
	crowd()
	require.Equal(t, before, read(), "rows were read, although none is asked for that is there")
}
