package idempotency_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency"
)

// slowReserve is a store whose answer to a reserve takes a minute.
type slowReserve struct{ idempotency.MemoryStore }

func (s *slowReserve) Reserve(ctx context.Context, c idempotency.Claim) (idempotency.Record, error) {
	rec, err := s.MemoryStore.Reserve(ctx, c)
	time.Sleep(time.Minute)
	return rec, err
}

// Whoever closes the database after Drain must not cut off a request that is about to
// run, nor lose the event of one that has.
func TestDrainWaitsFromTheReserveToTheEvent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		observed := false
		m, err := idempotency.New(new(slowReserve), idempotency.Config{
			Tenant:       idempotency.SingleTenant,
			StoreTimeout: time.Hour,
			Lease:        time.Hour,
			Observe: func(context.Context, idempotency.Event) {
				time.Sleep(time.Minute)
				observed = true
			},
		})
		require.NoError(t, err)
		h := m.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			time.Sleep(time.Minute)
			io.WriteString(w, "charged")
		}))
		r := httptest.NewRequest("POST", "/charges", strings.NewReader("{}"))
		r.Header.Set("Idempotency-Key", "k")
		go h.ServeHTTP(httptest.NewRecorder(), r)
		synctest.Wait() // the store is thinking

		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, m.Drain(short), context.DeadlineExceeded, "in the reserve")
		require.NoError(t, m.Drain(t.Context()))
		require.True(t, observed)
	})
}
