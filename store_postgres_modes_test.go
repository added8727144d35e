package idempotency_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency"
	"github.com/seed-2d1e5f61/idempotency/internal/testdb"
)

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
