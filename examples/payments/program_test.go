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

func TestArguments(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(payments, "-addr", ":0")
	out, err := cmd.CombinedOutput()
	require.ErrorAs(t, err, new(*exec.ExitError))
	require.Equal(t, 2, cmd.ProcessState.ExitCode())
	require.Regexp(t, `\Apayments: unknown argument "-addr"; usage: \[ADDR=host:port\] .* payments\n\z`, string(out))
}

func TestInterrupt(t *testing.T) {
	t.Parallel()
	p := launch(t)
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGINT))
	require.NoError(t, p.cmd.Wait())
}
