package idempotency_test

import (
	"errors"
	"net/http"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency"
	"github.com/seed-2d1e5f61/idempotency/internal/testdb"
)

// InTx of another store than the attempt's finds no claim, and says why. A store that only
// wraps it holds the claim.
func TestInTxOfAnotherStore(t *testing.T) {
	t.Parallel()
	ledger, other := newTxLedger(t, testdb.URL(t)), newTxLedger(t, testdb.URL(t))
	for name, test := range map[string]struct {
		store idempotency.Store
		want  string // "": none
	}{
		"memory":        {&idempotency.MemoryStore{}, "the attempt runs on another one, a *idempotency.MemoryStore"},
		"another table": {other.store, "the attempt runs on another one, a *idempotency.PostgresStore"},
		"wrapped":       {struct{ idempotency.Store }{ledger.store}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var err error
			h := newFixture(t, test.store).Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				err = ledger.store.InTx(r.Context(), func(tx pgx.Tx) error {
					w.WriteHeader(http.StatusCreated)
					return ledger.insert(r.Context(), tx, "c1")
				})
			}))
			before := ledger.count(t)
			call(h, request("k", "{}"))
			if test.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, idempotency.ErrClaimLost)
			require.ErrorContains(t, err, test.want)
			require.Equal(t, before, ledger.count(t), "an effect without a record")
		})
	}
}

// The attempt's own store has only one way of losing a claim.
func TestInTxOfTheAttemptsOwnStoreNamesNoOther(t *testing.T) {
	t.Parallel()
	l := newTxLedger(t, testdb.URL(t))
	var err error
	h := newFixture(t, l.store).Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, execErr := l.db.Exec(r.Context(), "DELETE FROM "+l.storeTable(t)); execErr != nil {
			t.Error(execErr)
		}
		err = l.store.InTx(r.Context(), func(pgx.Tx) error { w.WriteHeader(http.StatusCreated); return nil })
	}))
	call(h, request("k", "{}"))
	require.True(t, errors.Is(err, idempotency.ErrClaimLost))
	require.NotContains(t, err.Error(), "another")
}
