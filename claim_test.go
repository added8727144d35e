package idempotency_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency"
)

// A deadline of the client's shortens the reserve, and never the record.
func TestClientDeadline(t *testing.T) {
	bubble(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		f := newFixture(t, newFaultStore("Reserve", silent))
		a := call(f.Handler(&charges{}), request("k", "{}").WithContext(ctx))
		requireProblem(t, a, http.StatusServiceUnavailable, "idempotency_unavailable")
		require.Equal(t, time.Second, time.Since(began))
		require.NoError(t, f.Drain(t.Context()))

		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		f = newFixture(t, newFaultStore("Complete", silent, works))
		began = time.Now()
		a = call(f.Handler(&charges{}), request("k", "{}").WithContext(ctx))
		require.Equal(t, http.StatusCreated, a.Status)
		require.Equal(t, idempotency.Executed, f.event(t).Outcome)
		require.Greater(t, time.Since(began), 2*time.Second)
	})
}

// A token is random and new for every attempt, so that no zombie's matches.
func TestTokens(t *testing.T) {
	t.Parallel()
	store := newFaultStore("Reserve")
	h := newFixture(t, store, func(c *idempotency.Config) { c.Keep = func(int) bool { return false } }).Handler(&charges{})
	seen := make(map[uuid.UUID]bool)
	for range 100 {
		call(h, request("k", "{}"))
		calls := store.called()
		reserve, release := calls[len(calls)-2], calls[len(calls)-1]
		require.Equal(t, []string{"Reserve", "Release"}, []string{reserve.op, release.op})
		require.Equal(t, reserve.claim.Token, release.claim.Token)
		require.Equal(t, uuid.Version(4), reserve.claim.Token.Version())
		require.Equal(t, uuid.RFC4122, reserve.claim.Token.Variant())
		require.False(t, seen[reserve.claim.Token])
		seen[reserve.claim.Token] = true
	}
}

// Only the store's clock judges: when the store says that a record was made is nobody's
// business here, however far the two clocks are apart.
func TestClocksApart(t *testing.T) {
	t.Parallel()
	for _, apart := range []time.Duration{-1000 * time.Hour, 1000 * time.Hour} {
		f := newFixture(t, otherClock{newFaultStore("Reserve"), apart})
		h := f.Handler(&charges{})
		call(h, request("k", "{}"))
		require.True(t, call(h, request("k", "{}")).replayed())
		reserveElsewhere(t, f.store, "k2", "{}", time.Minute, time.Hour)
		requireProblem(t, call(h, request("k2", "{}")), http.StatusConflict, "idempotency_key_in_flight")
	}
}

type otherClock struct {
	*faultStore
	apart time.Duration
}

func (s otherClock) Reserve(ctx context.Context, c idempotency.Claim) (idempotency.Record, error) {
	rec, err := s.faultStore.Reserve(ctx, c)
	rec.CreatedAt = rec.CreatedAt.Add(s.apart)
	return rec, err
}
