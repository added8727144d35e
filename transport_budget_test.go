package idempotency_test

import (
	"net/http"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency"
)

// retriesOf sends n requests that all fail and counts the retries.
func retriesOf(t *testing.T, tr *idempotency.Transport, n int) (retries int) {
	t.Helper()
	base := &scriptedBase{answer: statuses(503)}
	tr.Base = base
	for range n {
		resp, err := tr.RoundTrip(post(t, t.Context(), nil))
		require.NoError(t, err)
		require.Equal(t, 503, resp.StatusCode)
		resp.Body.Close()
	}
	return len(base.requests) - n
}

func TestTransportRetryBudget(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name            string
		ratio           float64
		requests        int
		retries, within int
	}{
		{"burst of 10", 0, 4, 10, 0},
		{"a tenth, long run", 0, 10_000, 10 + 1000, 1},
		{"a quarter, long run", 0.25, 10_000, 10 + 2500, 1},
		{"nearly none, long run", 0.0001, 10_000, 10 + 1, 1},
		{"more than there are attempts", 5, 1000, 3 * 1000, 0},
		{"no budget", -1, 1000, 3 * 1000, 0},
	}
	for _, tt := range tests {
		synctest.Test(t, func(t *testing.T) {
			tr := &idempotency.Transport{RetryRatio: tt.ratio}
			assert.InDelta(t, tt.retries, retriesOf(t, tr, tt.requests), float64(tt.within), tt.name)
		})
	}
}

func TestTransportRetryBudgetFillsToTheBurst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tr := &idempotency.Transport{}
		healthy := func(n int) {
			tr.Base = &scriptedBase{answer: statuses(200)}
			for range n {
				resp, err := tr.RoundTrip(post(t, t.Context(), nil))
				require.NoError(t, err)
				resp.Body.Close()
			}
		}
		healthy(1000)
		assert.Equal(t, 10, retriesOf(t, tr, 9), "a quiet time saves up no more than the burst")
		healthy(30)
		assert.Equal(t, 3, retriesOf(t, tr, 1), "30 requests earned 3 retries")
		assert.Equal(t, 1, retriesOf(t, tr, 1), "and the 9 and 2 that failed one")
		assert.Equal(t, 0, retriesOf(t, tr, 1))
	})
}

// A request that is not retried for another reason takes nothing from the budget.
func TestTransportSpendsTheBudgetOnRetriesOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tr := &idempotency.Transport{Base: &scriptedBase{answer: func(int) (*http.Response, error) {
			return reply(503, "Retry-After", "3600"), nil
		}}}
		for range 100 {
			resp, err := tr.RoundTrip(post(t, t.Context(), nil))
			require.NoError(t, err)
			resp.Body.Close()
		}
		assert.Equal(t, 10, retriesOf(t, tr, 4))
	})
}
