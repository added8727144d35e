package main

import (
	"net/http"
	"net/url"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency/internal/pgproxy"
	"github.com/seed-2d1e5f61/idempotency/internal/testdb"
)

// crashed returns a program under whose predecessor's hands k1 was left: killed while it
// waited for the card network.
func crashed(t *testing.T, policy string) (*program, env) {
	mode := env{"DATABASE_URL": testdb.Database(t), "LEASE": "1s", "AFTER_CRASH": policy}
	p := launch(t, mode, env{"CARD_NETWORK_LATENCY": "1h"})
	p.inFlight(t.Context(), http.DefaultClient, request{key: "k1", body: card})
	p.kill()
	return launch(t, mode), mode
}

func (p *program) kill() {
	require.NoError(p, p.cmd.Process.Kill())
	require.Error(p, p.cmd.Wait())
}

// retryK1 repeats the request until the dead process's lease is over.
func (p *program) retryK1() (a answer) {
	require.Eventually(p, func() bool {
		a = p.post("k1", card)
		return a.code() != "idempotency_key_in_flight"
	}, 30*time.Second, 50*time.Millisecond)
	return a
}

func TestRerunAfterCrash(t *testing.T) {
	t.Parallel()
	p, mode := crashed(t, "rerun")
	require.Equal(t, 201, p.retryK1().status)
	require.True(t, p.post("k1", card).replayed())
	require.Len(t, p.charges(), 1)
	require.Equal(t, 1, countRows(t, mode["DATABASE_URL"], "card_network"))
	require.Contains(t, p.stderr.String(), "attempt=2")
}

func TestHoldAfterCrashUntilReconciled(t *testing.T) {
	t.Parallel()
	p, mode := crashed(t, "hold")
	for range 2 {
		a := p.retryK1()
		require.Equal(t, 409, a.status)
		require.Equal(t, "idempotency_outcome_unknown", a.code())
		require.Empty(t, a.header.Get("Retry-After"), "waiting does not help")
	}
	require.Empty(t, p.charges())

	require.Contains(t, reconciled(t, mode, "list"), "not charged")
	require.Contains(t, reconciled(t, mode, "resolve", "-all"), "key freed")
	a := p.post("k1", card)
	require.Equal(t, 201, a.status)
	require.False(t, a.replayed())
}

// The process dies after the card network took the money, before the ledger booked it.
func TestReconcileBooksWhatTheNetworkCharged(t *testing.T) {
	t.Parallel()
	mode := env{"DATABASE_URL": testdb.Database(t), "LEASE": "1s"}
	p := launch(t, mode)
	ordinary := p.post("k0", card)
	require.Equal(t, 201, ordinary.status)

	db := testdb.PoolAt(t, mode["DATABASE_URL"])
	tx, err := db.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "LOCK TABLE charges")
	require.NoError(t, err)
	go p.try(t.Context(), http.DefaultClient, request{key: "k1", body: card})
	require.Eventually(t, func() bool { return countRows(t, mode["DATABASE_URL"], "card_network") == 2 },
		30*time.Second, 20*time.Millisecond)
	p.kill()
	require.NoError(t, tx.Rollback(t.Context()))

	p = launch(t, mode)
	require.Equal(t, "idempotency_outcome_unknown", p.retryK1().code())
	require.Len(t, p.charges(), 1)
	require.Contains(t, reconciled(t, mode, "list"), "charged, not booked")
	require.Contains(t, reconciled(t, mode, "resolve", "-all"), "booked, the next retry is answered 201")
	require.NotContains(t, reconciled(t, mode, "list"), "ch_", "nothing is left")

	a := p.post("k1", card)
	require.True(t, a.replayed())
	require.Equal(t, 201, a.status)
	require.Len(t, p.charges(), 2)
	require.Equal(t, 2, countRows(t, mode["DATABASE_URL"], "card_network"))

	// It is what the handler would have answered, to the header.
	require.Equal(t, a.body, p.do(request{method: "GET", path: a.header.Get("Location")}).body)
	ordinary = p.post("k0", card)
	for _, h := range []http.Header{ordinary.header, a.header} {
		h.Del("Location")
		h.Del("Date")
	}
	require.Equal(t, ordinary.header, a.header)
}

func reconciled(t *testing.T, mode env, args ...string) string {
	t.Helper()
	cmd := exec.Command(reconcile, args...)
	cmd.Env = environ([]env{mode})
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	return string(out)
}

// A charge that the database refused can be tried again under its key, and the card
// network takes the money once.
func TestLedgerDown(t *testing.T) {
	t.Parallel()
	url := testdb.Database(t)
	p := start(t, env{"DATABASE_URL": url})
	db := testdb.PoolAt(t, url)
	rename := func(from, to string) {
		_, err := db.Exec(t.Context(), "ALTER TABLE "+from+" RENAME TO "+to)
		require.NoError(t, err)
	}

	rename("charges", "charges_away")
	for _, a := range []answer{
		p.post("k1", card),
		p.do(request{method: "GET"}),
		p.do(request{method: "GET", path: "/v1/charges/ch_1"}),
	} {
		require.Equal(t, 503, a.status)
		require.Equal(t, "ledger_unavailable", a.code())
		require.Equal(t, "1", a.header.Get("Retry-After"))
	}
	for range 2 {
		other := p.post("k1", strings.Replace(card, "1200", "1300", 1))
		require.Equal(t, 422, other.status)
		require.Equal(t, "charge_differs", other.code(), "the network has 1200 under this key")
		require.False(t, other.replayed())
	}
	require.Equal(t, 1, countRows(t, url, "card_network"))

	rename("charges_away", "charges")
	require.Equal(t, 201, p.post("k1", card).status)
	require.Len(t, p.charges(), 1)
	require.Equal(t, 1, countRows(t, url, "card_network"))
}

// The database commits, and is gone before it can say so: the client is not told a guess,
// and its retry meets the truth.
func TestLostCommit(t *testing.T) {
	t.Parallel()
	url := testdb.Database(t)
	proxy := pgproxy.Start(t, url)
	p := start(t, env{"DATABASE_URL": oneConnection(t, proxy)}) // so that none is left to ask through
	proxy.OnCommit(func() pgproxy.Fate {
		proxy.SetAway(true)
		return pgproxy.LoseReply
	})
	a := p.post("k1", card)
	require.Equal(t, 503, a.status)
	require.Equal(t, "idempotency_unavailable", a.code())
	require.NotEmpty(t, a.header.Get("Retry-After"))

	proxy.SetAway(false)
	a = p.post("k1", card)
	require.Equal(t, 201, a.status)
	require.True(t, a.replayed())
	require.Equal(t, 1, countRows(t, url, "charges"))
	require.Equal(t, 1, countRows(t, url, "card_network"))
}

func oneConnection(t *testing.T, proxy *pgproxy.Proxy) string {
	u, err := url.Parse(proxy.URL())
	require.NoError(t, err)
	query := u.Query()
	query.Set("pool_max_conns", "1")
	u.RawQuery = query.Encode()
	return u.String()
}

// The connection dies before the database hears of the commit: nothing is booked, and
// the retry is a fresh run.
func TestFailedCommit(t *testing.T) {
	t.Parallel()
	url := testdb.Database(t)
	proxy := pgproxy.Start(t, url)
	p := start(t, env{"DATABASE_URL": proxy.URL()})
	proxy.OnCommit(func() pgproxy.Fate {
		proxy.OnCommit(nil)
		return pgproxy.LoseCommit
	})
	a := p.post("k1", card)
	require.Equal(t, 503, a.status)
	require.Equal(t, "ledger_unavailable", a.code())
	require.Equal(t, 0, countRows(t, url, "charges"))

	a = p.post("k1", card)
	require.Equal(t, 201, a.status)
	require.False(t, a.replayed())
	require.Equal(t, 1, countRows(t, url, "charges"))
	require.Equal(t, 1, countRows(t, url, "card_network"))
}
