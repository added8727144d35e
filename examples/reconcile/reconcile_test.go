package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency"
	"github.com/seed-2d1e5f61/idempotency/examples/internal/charges"
	"github.com/seed-2d1e5f61/idempotency/internal/testdb"
)

// bench is a database with interrupted claims.
type bench struct {
	*testing.T
	url     string
	store   *idempotency.PostgresStore
	ledger  *charges.PostgresLedger
	network *charges.PostgresNetwork
}

func newBench(t *testing.T) *bench {
	url := testdb.Database(t)
	db := testdb.PoolAt(t, url)
	store, err := idempotency.NewPostgresStore(db, idempotency.PostgresConfig{})
	require.NoError(t, err)
	require.NoError(t, store.Migrate(t.Context()))
	require.NoError(t, charges.Migrate(t.Context(), db))
	return &bench{t, url, store, &charges.PostgresLedger{DB: db, Store: store}, &charges.PostgresNetwork{DB: db}}
}

// interrupt leaves a claim behind whose lease is over.
func (b *bench) interrupt(endpoint, key string) idempotency.Claim {
	b.Helper()
	claim := idempotency.Claim{
		Key:   idempotency.Key{Tenant: "acct_a", Endpoint: endpoint, Value: key},
		Token: uuid.New(), Lease: time.Millisecond, TTL: time.Hour,
	}
	_, err := b.store.Reserve(b.Context(), claim)
	require.NoError(b, err)
	require.Eventually(b, func() bool {
		stuck, err := b.store.Stuck(b.Context(), 100)
		require.NoError(b, err)
		for _, s := range stuck {
			if s.Token == claim.Token {
				return true
			}
		}
		return false
	}, 30*time.Second, 5*time.Millisecond)
	return claim
}

func chargeOf(claim idempotency.Claim, order string) charges.Charge {
	return charges.Charge{
		ID: charges.IDFor(claim.Key), Tenant: claim.Key.Tenant, Amount: 1200, Currency: "jpy", OrderID: order, Created: time.Now(),
	}
}

// retry returns what a retry of the claim's request meets.
func (b *bench) retry(claim idempotency.Claim) idempotency.Record {
	b.Helper()
	claim.Token, claim.Lease = uuid.New(), time.Minute
	rec, err := b.store.Reserve(b.Context(), claim)
	require.NoError(b, err)
	return rec
}

func (b *bench) reconcile(args ...string) string {
	b.Helper()
	var out strings.Builder
	require.NoError(b, run(b.Context(), args, b.url, &out))
	return out.String()
}

func (b *bench) booked() []charges.Charge {
	b.Helper()
	list, err := b.ledger.List(b.Context(), "acct_a")
	require.NoError(b, err)
	return list
}

const chargesEndpoint = "POST /v1/charges"

func TestListChangesNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	claim := b.interrupt(chargesEndpoint, "k1")
	charge := chargeOf(claim, "")
	_, err := b.network.Charge(t.Context(), charge, "tok_visa")
	require.NoError(t, err)
	free := b.interrupt(chargesEndpoint, "k2")
	other := b.interrupt("POST /v1/refunds", "k3")

	for range 2 {
		lines := strings.Split(strings.TrimSpace(b.reconcile("list")), "\n")
		require.Len(t, lines, 3, "a headline and two charges")
		require.Regexp(t, `^CHARGE +STATE +TENANT +ENDPOINT +KEY +ATTEMPT +CREATED +LAPSED`, lines[0])
		require.Regexp(t, "^"+charge.ID+` +charged, not booked +acct_a +POST /v1/charges +k1 +1 +20\S+ +20\S+$`, lines[1])
		require.Regexp(t, "^"+charges.IDFor(free.Key)+` +not charged +acct_a +POST /v1/charges +k2 +1 `, lines[2])
	}
	require.Empty(t, b.booked())
	for _, c := range []idempotency.Claim{claim, free, other} {
		require.Equal(t, idempotency.Interrupted, b.retry(c).State)
	}
}

func TestResolve(t *testing.T) {
	t.Parallel()
	t.Run("charged", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		claim := b.interrupt(chargesEndpoint, "k1")
		charge, err := b.network.Charge(t.Context(), chargeOf(claim, "7"), "tok_visa")
		require.NoError(t, err)

		require.Contains(t, b.reconcile("resolve", charge.ID), charge.ID+": charged, not booked: booked")
		require.Len(t, b.booked(), 1)
		rec := b.retry(claim)
		require.Equal(t, idempotency.Completed, rec.State)
		require.Equal(t, charge.Response().Body, rec.Response.Body)
		require.Equal(t, charge.Response().Header, rec.Response.Header)
		require.Equal(t, 201, rec.Response.Status)
	})
	t.Run("booked", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		claim := b.interrupt(chargesEndpoint, "k1")
		charge := chargeOf(claim, "7")
		require.NoError(t, b.ledger.Add(t.Context(), charge, func() {}))

		require.Contains(t, b.reconcile("resolve", "-all"), charge.ID+": booked: booked, the next retry is answered 201")
		require.Len(t, b.booked(), 1)
		require.Equal(t, charge.Response().Body, b.retry(claim).Response.Body)
	})
	t.Run("not charged", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		claim := b.interrupt(chargesEndpoint, "k1")
		require.Contains(t, b.reconcile("resolve", "-all"), "not charged: key freed")
		rec := b.retry(claim)
		require.Equal(t, idempotency.Acquired, rec.State)
		require.Equal(t, 1, rec.Attempt)
		require.Empty(t, b.booked())
	})
	t.Run("order charged otherwise", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		claim := b.interrupt(chargesEndpoint, "k1")
		charge, err := b.network.Charge(t.Context(), chargeOf(claim, "7"), "tok_visa")
		require.NoError(t, err)
		other := charge
		other.ID = "ch_other"
		require.NoError(t, b.ledger.Add(t.Context(), other, func() {}))

		require.Contains(t, b.reconcile("resolve", "-all"), "refunded; key freed")
		_, err = b.network.Find(t.Context(), charge.ID)
		require.ErrorIs(t, err, charges.ErrNotFound)
		require.Len(t, b.booked(), 1)
		require.Equal(t, idempotency.Acquired, b.retry(claim).State)
	})
	t.Run("only what was asked", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		asked, left := b.interrupt(chargesEndpoint, "k1"), b.interrupt(chargesEndpoint, "k2")
		other := b.interrupt("POST /v1/refunds", "k3")
		b.reconcile("resolve", charges.IDFor(asked.Key))
		require.Equal(t, idempotency.Acquired, b.retry(asked).State)
		require.Equal(t, idempotency.Interrupted, b.retry(left).State)

		b.reconcile("resolve", "-all")
		require.Equal(t, idempotency.Acquired, b.retry(left).State)
		require.Equal(t, idempotency.Interrupted, b.retry(other).State, "another operation's claim is not ours to free")
	})
}

// Between the look and the settling the attempt may come alive, or a colleague be faster.
func TestSettleLeavesALiveClaimAlone(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	claim := b.interrupt(chargesEndpoint, "k1")
	r := &reconciler{store: b.store, ledger: b.ledger, network: b.network}
	findings, err := r.look(t.Context(), 10)
	require.NoError(t, err)
	require.Len(t, findings, 1)

	claim.Lease = time.Minute
	require.NoError(t, b.store.Extend(t.Context(), claim))
	did, err := r.settle(t.Context(), findings[0])
	require.NoError(t, err)
	require.Contains(t, did, "left alone")
	require.Equal(t, idempotency.InFlight, b.retry(claim).State)
}

func TestBadArguments(t *testing.T) {
	t.Parallel()
	usage := [][]string{
		{}, {"lst"}, {"list", "ch_1"}, {"list", "-all"}, {"list", "-limit", "0"}, {"list", "-limit", "x"},
		{"resolve"}, {"resolve", "-all", "ch_1"}, {"resolve", "-limit", "-1", "-all"},
	}
	for _, args := range usage {
		require.ErrorIs(t, run(t.Context(), args, "", nil), errUsage, "%q", args)
	}
	require.ErrorContains(t, run(t.Context(), []string{"list"}, "", nil), "DATABASE_URL")
	require.ErrorContains(t, run(t.Context(), []string{"list"}, "postgres://h:x/", nil), "DATABASE_URL")
}

func TestUnknownCharge(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	claim := b.interrupt(chargesEndpoint, "k1")
	var out strings.Builder
	err := run(t.Context(), []string{"resolve", "ch_nobody", charges.IDFor(claim.Key)}, b.url, &out)
	require.EqualError(t, err, "not among the interrupted charges: ch_nobody")
	require.Equal(t, idempotency.Acquired, b.retry(claim).State, "the other one is settled")
}

func TestFailsInOneLine(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "reconcile")
	out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput()
	require.NoError(t, err, string(out))
	for _, args := range [][]string{{"list"}, {"nonsense"}, {"list", "-x"}} {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		cmd := exec.CommandContext(ctx, program, args...)
		cmd.Env = append(os.Environ(), "DATABASE_URL=postgres://u:secret@127.0.0.1:1/")
		out, err := cmd.Output()
		var exit *exec.ExitError
		require.True(t, errors.As(err, &exit), "%v", err)
		require.Equal(t, 1, exit.ExitCode())
		require.Empty(t, out)
		require.Regexp(t, `^reconcile: [^\n]+\n$`, string(exit.Stderr))
		require.NotContains(t, string(exit.Stderr), "secret")
	}
}
