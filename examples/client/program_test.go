package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// launch starts the built program.
func launch(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(client, args...)
	cmd.Env = append(os.Environ(), "API_KEY=")
	cmd.Stdout, cmd.Stderr = new(bytes.Buffer), new(bytes.Buffer)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			cmd.Process.Kill()
			cmd.Wait()
		}
	})
	return cmd
}

// kill ends the program as a crash would: it gets no say in it.
func kill(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())
}

func stdout(cmd *exec.Cmd) string { return cmd.Stdout.(*bytes.Buffer).String() }

// Killed while the service holds the answer, before the charge and behind it, then
// started again: the same key, one charge.
func TestKilledAndStartedAgain(t *testing.T) {
	t.Parallel()
	for _, charged := range []bool{false, true} {
		held, release := make(chan struct{}), make(chan struct{})
		hold := func(n int) {
			if n == 1 {
				close(held)
				<-release
			}
		}
		s := startService(t, hold, nil)
		if charged {
			s.before, s.after = s.after, hold
		}
		path := statePath(t)
		args := []string{"-url", s.URL, "-state", path}

		first := launch(t, args...)
		<-held
		atRequest := savedOrder(t, path)
		kill(t, first)
		close(release)
		assert.Empty(t, stdout(first))

		second := launch(t, args...)
		require.NoError(t, second.Wait(), "%s", second.Stderr)
		assert.Equal(t, "paid 1200 jpy with ch_1\n", stdout(second))

		keys, charges := s.requests()
		assert.Equal(t, []string{atRequest.Key, atRequest.Key}, keys, "saved before it was sent, and kept")
		assert.Equal(t, 1, charges)
		assert.Equal(t, "ch_1", savedOrder(t, path).Charge.ID)
	}
}

func TestAnErrorIsOneLine(t *testing.T) {
	t.Parallel()
	down := httptest.NewServer(nil)
	down.Close()
	s := startService(t, nil, nil)
	for want, args := range map[string][]string{
		"connection refused":    {"-url", down.URL},
		"the card was declined": {"-url", s.URL, "-source", "tok_declined"},
		"not defined: -price":   {"-price", "1"},
		"-amount -1":            {"-amount", "-1"},
	} {
		cmd := launch(t, append(args, "-state", statePath(t))...)
		require.Error(t, cmd.Wait())
		assert.Equal(t, 1, cmd.ProcessState.ExitCode())
		assert.Regexp(t, `^client: [^\n]*\n$`, cmd.Stderr)
		assert.Contains(t, cmd.Stderr.(*bytes.Buffer).String(), want)
		assert.Empty(t, stdout(cmd))
	}
}

// The same against the payments example, where the first request may still be running
// when the second program asks.
func TestKilledAndStartedAgainAtPayments(t *testing.T) {
	t.Parallel()
	arrived := make(chan struct{}, 100)
	service := startPayments(t, arrived)
	args := []string{"-url", service, "-state", statePath(t)}
	first := launch(t, args...)
	<-arrived
	kill(t, first)

	second := launch(t, args...)
	require.NoError(t, second.Wait(), "%s", second.Stderr)
	third := launch(t, args...)
	require.NoError(t, third.Wait(), "%s", third.Stderr)
	assert.Equal(t, stdout(second), stdout(third))

	list := listCharges(t, service)
	require.Len(t, list, 1)
	assert.Equal(t, "paid 1200 jpy with "+list[0].ID+"\n", stdout(second))
}

// startPayments runs the payments example behind a proxy that tells when a charge has
// arrived, and returns the proxy's address.
func startPayments(t *testing.T, arrived chan<- struct{}) string {
	t.Helper()
	cmd := exec.Command(payments)
	cmd.Env = append(os.Environ(), "ADDR=127.0.0.1:0", "DATABASE_URL=", "CARD_NETWORK_LATENCY=500ms", "LEASE=1s", "AFTER_CRASH=")
	pipe, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	line, err := bufio.NewReader(pipe).ReadString('\n')
	require.NoError(t, err)
	_, after, _ := strings.Cut(line, "Listening on ")
	address, _, _ := strings.Cut(after, ",")
	target, err := url.Parse(address)
	require.NoError(t, err)

	forward := httputil.NewSingleHostReverseProxy(target)
	forward.ErrorHandler = func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) }
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			arrived <- struct{}{}
		}
		forward.ServeHTTP(w, r)
	}))
	t.Cleanup(proxy.Close)
	return proxy.URL
}

func listCharges(t *testing.T, service string) []charge {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, service+"/v1/charges", nil)
	require.NoError(t, err)
	req.Header.Set("Authorization", "Bearer sk_test_1")
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	var list struct{ Data []charge }
	require.NoError(t, json.NewDecoder(resp.Body).Decode(&list))
	return list.Data
}
