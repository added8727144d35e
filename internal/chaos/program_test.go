package chaos

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func build(t *testing.T) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "payments")
	out, err := exec.Command("go", "build", "-o", binary, "../../examples/payments").CombinedOutput()
	require.NoError(t, err, string(out))
	return binary
}

// program is a payments process that can be killed and started again on its address.
type program struct {
	binary, addr string
	env          []string
	log          lockedBuffer

	mu  sync.Mutex
	cmd *exec.Cmd
}

func newProgram(t *testing.T, binary string, env ...string) *program {
	t.Helper()
	p := &program{binary: binary, addr: fmt.Sprintf("127.0.0.1:%d", freePort(t))}
	p.env = append(append(os.Environ(), "ADDR="+p.addr), env...)
	p.start()
	t.Cleanup(p.kill)
	return p
}

// start starts a process; it may end at once while the database is away.
func (p *program) start() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cmd = exec.Command(p.binary)
	p.cmd.Env, p.cmd.Stdout, p.cmd.Stderr = p.env, io.Discard, &p.log
	if err := p.cmd.Start(); err != nil {
		panic(err) // it was built a moment ago
	}
}

func (p *program) kill() {
	p.signal(syscall.SIGKILL)
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.cmd.Wait() // killed: that is its error
}

func (p *program) signal(s syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.cmd.Process.Signal(s) // it may have ended by itself
}

func (p *program) ready(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool {
		resp, err := http.Get("http://" + p.addr + "/healthz")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	}, time.Minute, 20*time.Millisecond, "payments does not start: %s", &p.log)
}

// answer is all of a response that a client acts on.
type answer struct {
	status         int
	location, body string
}

// charge sends one request, once.
func (p *program) charge(ctx context.Context, client *http.Client, key, order string) (answer, error) {
	body := fmt.Sprintf(`{"amount":1200,"currency":"jpy","source":"tok_visa","order_id":%q}`, order)
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+p.addr+"/v1/charges", strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	r.GetBody = nil // Go must not resend it by itself: every request is counted
	r.Header.Set("Authorization", "Bearer sk_test_chaos")
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Idempotency-Key", key)
	resp, err := client.Do(r)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header.Get("Location"), string(got)}, err
}

type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
