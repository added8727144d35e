package interop

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

const apiKey = "sk_test_interop"

// service is the payments example, running, behind a proxy that loses responses.
type service struct {
	t        *testing.T
	url      string // past the proxy
	lossy    string // through it
	requests atomic.Int64
}

// startService loses the response to every request that lose names, by its number from
// 1: the service has answered, and the client sees a broken connection.
func startService(t *testing.T, lose func(n int64) bool) *service {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "payments")
	build := exec.Command("go", "build", "-o", binary, "./examples/payments")
	build.Dir = "../.."
	out, err := build.CombinedOutput()
	require.NoError(t, err, string(out))

	cmd := exec.CommandContext(t.Context(), binary)
	cmd.Env = append(os.Environ(), "ADDR=127.0.0.1:0", "DATABASE_URL=", "CARD_NETWORK_LATENCY=5ms")
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	greeting := make([]byte, 4096)
	n, err := stdout.Read(greeting)
	require.NoError(t, err)
	go io.Copy(io.Discard, stdout)
	backend, err := url.Parse(string(regexp.MustCompile(`http://[0-9.:]+`).Find(greeting[:n])))
	require.NoError(t, err)

	s := &service{t: t, url: backend.String()}
	proxy := httputil.NewSingleHostReverseProxy(backend)
	proxy.ModifyResponse = func(resp *http.Response) error {
		if lose(s.requests.Add(1)) {
			io.Copy(io.Discard, resp.Body)
			panic(http.ErrAbortHandler) // the connection dies in the client's hands
		}
		return nil
	}
	front := httptest.NewServer(proxy)
	t.Cleanup(front.Close)
	s.lossy = front.URL
	return s
}

// charges asks the service itself how often it has charged.
func (s *service) charges() int {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, s.url+"/v1/charges", nil)
	require.NoError(s.t, err)
	r.Header.Set("Authorization", "Bearer "+apiKey)
	resp, err := http.DefaultClient.Do(r)
	require.NoError(s.t, err)
	defer resp.Body.Close()
	var list struct{ Data []any }
	require.NoError(s.t, json.NewDecoder(resp.Body).Decode(&list))
	return len(list.Data)
}
