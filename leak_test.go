package idempotency_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency"
	"github.com/seed-2d1e5f61/idempotency/internal/testdb"
)

// A thousand requests whose clients leave, at any moment, leave neither a goroutine nor
// a connection behind.
func TestCancelledRequestsLeakNothing(t *testing.T) {
	// Not parallel: it counts the goroutines of the process.
	before := runtime.NumGoroutine()
	t.Run("requests", func(t *testing.T) {
		pool := testdb.Pool(t, func(c *pgxpool.Config) { c.MaxConns = 8 })
		store, err := idempotency.NewPostgresStore(pool, idempotency.PostgresConfig{Table: testdb.Table(t)})
		require.NoError(t, err)
		require.NoError(t, store.Migrate(t.Context()))
		m, err := idempotency.New(store, idempotency.Config{Tenant: idempotency.SingleTenant, Wait: time.Second})
		require.NoError(t, err)
		handler := m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			runtime.Gosched()
			w.WriteHeader(http.StatusCreated)
		}))

		var wg sync.WaitGroup
		for worker := range 20 {
			wg.Go(func() {
				for n := range 50 {
					ctx, cancel := context.WithCancel(t.Context())
					r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/charges", strings.NewReader("{}"))
					r.Header.Set("Idempotency-Key", "key-"+strconv.Itoa(n)) // each for all workers: most are duplicates
					timer := time.AfterFunc(time.Duration(worker*n%40)*100*time.Microsecond, cancel)
					handler.ServeHTTP(httptest.NewRecorder(), r)
					timer.Stop()
					cancel()
				}
			})
		}
		wg.Wait()
		require.NoError(t, m.Drain(t.Context()))
		require.Eventually(t, func() bool { return pool.Stat().AcquiredConns() == 0 }, time.Minute, time.Millisecond)
	})
	// What has been told to end may still be ending.
	for deadline := time.Now().Add(time.Minute); runtime.NumGoroutine() > before; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			stacks := make([]byte, 1<<20)
			t.Fatalf("goroutines are left:\n%s", stacks[:runtime.Stack(stacks, true)])
		}
	}
}
