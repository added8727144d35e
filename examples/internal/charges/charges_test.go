package charges_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency"
	"github.com/seed-2d1e5f61/idempotency/examples/internal/charges"
	"github.com/seed-2d1e5f61/idempotency/internal/testdb"
)

// backends runs test against a ledger and a network in memory and in PostgreSQL.
func backends(t *testing.T, test func(t *testing.T, l charges.Ledger, n charges.Network)) {
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		test(t, &charges.MemoryLedger{}, &charges.MemoryNetwork{})
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		db := testdb.PoolAt(t, testdb.Database(t))
		store, err := idempotency.NewPostgresStore(db, idempotency.PostgresConfig{})
		require.NoError(t, err)
		require.NoError(t, store.Migrate(t.Context()))
		require.NoError(t, charges.Migrate(t.Context(), db))
		test(t, &charges.PostgresLedger{DB: db, Store: store}, &charges.PostgresNetwork{DB: db})
	})
}

func charge(id, tenant, order string) charges.Charge {
	return charges.Charge{
		ID: id, Tenant: tenant, Amount: 1200, Currency: "jpy", OrderID: order,
		Created: time.Now().Truncate(time.Second),
	}
}

func TestNetworkChargesOnceForAnID(t *testing.T) {
	t.Parallel()
	backends(t, func(t *testing.T, _ charges.Ledger, n charges.Network) {
		first := charge("ch_1", "acct_a", "")
		got, err := n.Charge(t.Context(), first, "tok_visa")
		require.NoError(t, err)
		require.True(t, got.Created.Equal(first.Created))

		later := first
		later.Created = first.Created.Add(time.Hour)
		got, err = n.Charge(t.Context(), later, "tok_visa")
		require.NoError(t, err)
		require.True(t, got.Created.Equal(first.Created), "a repeated charge is the first one")

		for _, other := range []charges.Charge{
			{ID: "ch_1", Tenant: "acct_a", Amount: 1300, Currency: "jpy"},
			{ID: "ch_1", Tenant: "acct_a", Amount: 1200, Currency: "usd"},
			{ID: "ch_1", Tenant: "acct_a", Amount: 1200, Currency: "jpy", OrderID: "1"},
		} {
			_, err = n.Charge(t.Context(), other, "tok_visa")
			require.ErrorIs(t, err, charges.ErrIDReused)
		}
	})
}

func TestNetworkRefundsOnce(t *testing.T) {
	t.Parallel()
	backends(t, func(t *testing.T, _ charges.Ledger, n charges.Network) {
		first := charge("ch_1", "acct_a", "")
		_, err := n.Charge(t.Context(), first, "tok_visa")
		require.NoError(t, err)
		require.NoError(t, n.Refund(t.Context(), "ch_1"))
		require.NoError(t, n.Refund(t.Context(), "ch_1"))

		first.Amount = 1
		_, err = n.Charge(t.Context(), first, "tok_visa")
		require.NoError(t, err, "after a refund nothing is left under the id")
	})
}

func TestNetworkTakesNoMoneyFromBadCards(t *testing.T) {
	t.Parallel()
	backends(t, func(t *testing.T, _ charges.Ledger, n charges.Network) {
		c := charge("ch_1", "acct_a", "")
		_, err := n.Charge(t.Context(), c, "tok_declined")
		require.ErrorIs(t, err, charges.ErrDeclined)
		_, err = n.Charge(t.Context(), c, "tok_timeout")
		require.ErrorIs(t, err, charges.ErrNetworkTimeout)

		c.Amount = 1
		_, err = n.Charge(t.Context(), c, "tok_visa")
		require.NoError(t, err, "neither left a charge behind")
	})
}

func TestNetworkStopsWaitingWithItsContext(t *testing.T) {
	t.Parallel()
	lost := errors.New("lost")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(lost)
	n := &charges.MemoryNetwork{Latency: time.Hour}
	_, err := n.Charge(ctx, charge("ch_1", "acct_a", ""), "tok_visa")
	require.ErrorIs(t, err, lost)
}

func TestLedger(t *testing.T) {
	t.Parallel()
	backends(t, func(t *testing.T, l charges.Ledger, _ charges.Network) {
		ctx := t.Context()
		responses := 0
		respond := func() { responses++ }

		older, newer := charge("ch_1", "acct_a", "7"), charge("ch_2", "acct_a", "")
		newer.Created = older.Created.Add(time.Second)
		require.NoError(t, l.Add(ctx, older, respond))
		require.NoError(t, l.Add(ctx, newer, respond))
		require.NoError(t, l.Add(ctx, older, respond), "the same charge again")
		require.Equal(t, 3, responses)

		require.ErrorIs(t, l.Add(ctx, charge("ch_3", "acct_a", "7"), respond), charges.ErrOrderCharged)
		require.Equal(t, 3, responses, "a refused charge gets no response")
		require.NoError(t, l.Add(ctx, charge("ch_4", "acct_b", "7"), respond), "another tenant's order 7")
		require.NoError(t, l.Add(ctx, charge("ch_5", "acct_c", ""), respond))
		require.NoError(t, l.Add(ctx, charge("ch_6", "acct_c", ""), respond), "no order, no constraint")

		list, err := l.List(ctx, "acct_a")
		require.NoError(t, err)
		require.Equal(t, []string{"ch_2", "ch_1"}, ids(list))
		list, err = l.List(ctx, "acct_nobody")
		require.NoError(t, err)
		require.NotNil(t, list, "it is shown as [], not null")
		require.Empty(t, list)

		got, err := l.Find(ctx, "acct_a", "ch_1")
		require.NoError(t, err)
		require.Equal(t, older.Response(), got.Response())
		_, err = l.Find(ctx, "acct_b", "ch_1")
		require.ErrorIs(t, err, charges.ErrNotFound)
	})
}

// Several processes start at once on an empty database.
func TestMigrateMeetsItself(t *testing.T) {
	t.Parallel()
	db := testdb.PoolAt(t, testdb.Database(t), func(cfg *pgxpool.Config) { cfg.MaxConns = 8 })
	failures := make(chan error, 8)
	for range cap(failures) {
		go func() { failures <- charges.Migrate(t.Context(), db) }()
	}
	for range cap(failures) {
		require.NoError(t, <-failures)
	}
}

func ids(list []charges.Charge) []string {
	var ids []string
	for _, c := range list {
		ids = append(ids, c.ID)
	}
	return ids
}

func TestResponse(t *testing.T) {
	t.Parallel()
	c := charges.Charge{ID: "ch_1", Tenant: "acct_a", Amount: 1200, Currency: "jpy", Created: time.Unix(1700000000, 999)}
	resp := c.Response()
	require.Equal(t, 201, resp.Status)
	require.Equal(t, "/v1/charges/ch_1", resp.Header.Get("Location"))
	require.Equal(t, "application/json", resp.Header.Get("Content-Type"))
	require.Equal(t, `{"id":"ch_1","object":"charge","amount":1200,"currency":"jpy","status":"succeeded","created":1700000000}`+"\n",
		string(resp.Body))

	c.OrderID = "7"
	require.Contains(t, string(c.Response().Body), `"order_id":"7"`)
}

func TestIDFor(t *testing.T) {
	t.Parallel()
	require.Equal(t, "ch_0a0b", charges.IDFor(derive("0a-0b")))
}

type derive string

func (d derive) Derive(name string) string {
	if name != "charge" {
		return "another " + name
	}
	return string(d)
}
