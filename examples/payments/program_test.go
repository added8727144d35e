package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency/internal/testdb"
)

// What it prints at the start can be pasted into a shell.
func TestWelcome(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("SKIPPED WITHOUT CURL: it is not on PATH")
	}
	p := start(t)
	var answers []string
	for line := range strings.Lines(p.stdout) {
		if strings.Contains(line, "curl") {
			out, err := exec.Command("sh", "-c", line).Output()
			require.NoError(t, err)
			answers = append(answers, string(out))
		}
	}
	require.Len(t, answers, 2)
	require.Contains(t, answers[0], "201 Created")
	require.NotContains(t, answers[0], "Idempotent-Replayed")
	require.Contains(t, answers[1], "Idempotent-Replayed: true")
	require.Len(t, p.charges(), 1)
}

func TestShutdownLetsChargesFinish(t *testing.T) {
	t.Parallel()
	inEachMode(t, func(t *testing.T, mode env) {
		p := launch(t, mode, env{"CARD_NETWORK_LATENCY": "1s"})
		running := p.inFlight(t.Context(), http.DefaultClient, request{key: "k1", body: card})
		require.NoError(t, p.terminate())
		r := <-running
		require.NoError(t, r.err)
		require.Equal(t, 201, r.status)
	})
}

func TestShutdownWaitsForChargesWhoseClientHasLeft(t *testing.T) {
	t.Parallel()
	inEachMode(t, func(t *testing.T, mode env) {
		for name, client := range map[string]*http.Client{"HTTP/1": http.DefaultClient, "h2c": h2c(t)} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				// Longer than the second for which http.Server keeps an HTTP/2 connection.
				p := launch(t, mode, env{"CARD_NETWORK_LATENCY": "3s"})
				ctx, leave := context.WithCancel(t.Context())
				running := p.inFlight(ctx, client, request{key: name, body: card})
				leave()
				require.ErrorIs(t, (<-running).err, context.Canceled)
				require.NoError(t, p.terminate())
				require.Contains(t, p.stderr.String(), "outcome=executed")
			})
		}
	})
}

// h2c returns a client that speaks HTTP/2 without TLS.
func h2c(t *testing.T) *http.Client {
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func TestHTTP2(t *testing.T) {
	t.Parallel()
	p := start(t)
	for _, replayed := range []bool{false, true} {
		a, err := p.try(t.Context(), h2c(t), request{key: "k1", body: card})
		require.NoError(t, err)
		require.Equal(t, 201, a.status)
		require.Equal(t, replayed, a.replayed())
	}
}

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

func TestLogHasNoKey(t *testing.T) {
	t.Parallel()
	inEachMode(t, func(t *testing.T, mode env) {
		p := launch(t, mode)
		const key = "secret-key"
		p.post(key, card)
		p.post(key, card)
		p.post(key, strings.Replace(card, "1200", "1", 1))
		p.post("secret key", card)
		p.post("secret-key-2", strings.Replace(card, "1200", "0", 1))
		require.NoError(t, p.terminate())

		log := p.stderr.String()
		for _, outcome := range []string{"executed", "replayed", "mismatch", "rejected", "released"} {
			require.Equal(t, 1, strings.Count(log, "outcome="+outcome+" "), log)
		}
		require.Contains(t, log, "endpoint=\"POST /v1/charges\"")
		require.Regexp(t, `key_hash=[0-9a-f]{32} `, log)
		require.NotContains(t, log, "secret")
		require.NotContains(t, log, "sk_test")
	})
}

func TestBadConfiguration(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()

	tests := []struct {
		name string
		env  env
		want []string
	}{
		{"unknown policy", env{"AFTER_CRASH": "maybe"}, []string{`AFTER_CRASH="maybe": want hold or rerun`}},
		{"lease without unit", env{"LEASE": "30"}, []string{`LEASE="30"`, "duration"}},
		{"no lease", env{"LEASE": "0s"}, []string{`LEASE="0s"`, "more than 0"}},
		{"lease beyond the TTL", env{"LEASE": "25h"}, []string{"Lease"}},
		{"negative latency", env{"CARD_NETWORK_LATENCY": "-1s"}, []string{`CARD_NETWORK_LATENCY="-1s"`, "0 or more"}},
		{"everything", env{"AFTER_CRASH": "x", "LEASE": "x", "CARD_NETWORK_LATENCY": "x", "DATABASE_URL": "postgres://u:secret@h:x/"},
			[]string{"AFTER_CRASH=", "LEASE=", "CARD_NETWORK_LATENCY=", "DATABASE_URL: "}},
		{"unreachable database", env{"DATABASE_URL": "postgres://u:secret@127.0.0.1:1/"}, []string{"DATABASE_URL: ", "127.0.0.1:1"}},
		{"address in use", env{"ADDR": taken.Addr().String()}, []string{taken.Addr().String(), "in use"}},
		{"no address", env{"ADDR": "nowhere"}, []string{"nowhere"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			cmd := exec.CommandContext(ctx, payments)
			cmd.Env = environ([]env{fast, tt.env})
			out, err := cmd.Output()
			var exit *exec.ExitError
			require.True(t, errors.As(err, &exit), "%v", err)
			require.Equal(t, 1, exit.ExitCode())
			require.Empty(t, out)

			message := string(exit.Stderr)
			require.Equal(t, 1, strings.Count(message, "\n"), message)
			require.True(t, strings.HasPrefix(message, "payments: "), message)
			for _, want := range tt.want {
				require.Contains(t, message, want)
			}
			require.NotContains(t, message, "secret")
		})
	}
}

func TestInterrupt(t *testing.T) {
	t.Parallel()
	p := launch(t)
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGINT))
	require.NoError(t, p.cmd.Wait())
}
