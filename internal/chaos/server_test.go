package chaos

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency/internal/testdb"
)

// postgres is a server of the test's own: it is restarted while others use theirs.
type postgres struct {
	bin, dir string
	port     int
	owner    *syscall.Credential // nil: ourselves
}

func startPostgres(t *testing.T) *postgres {
	t.Helper()
	testdb.URL(t) // skips or fails where there is no PostgreSQL
	s := &postgres{bin: os.Getenv("IDEMPOTENCY_TEST_POSTGRES_BIN"), port: freePort(t)}
	require.NotEmpty(t, s.bin, "set by scripts/test.sh")

	// The server refuses to run as root, and its owner must reach its directory.
	base, err := os.MkdirTemp("", "idempotency-chaos")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(base) })
	if os.Geteuid() == 0 {
		s.owner = unprivileged(t)
		require.NoError(t, os.Chown(base, int(s.owner.Uid), int(s.owner.Gid)))
	}
	s.dir = filepath.Join(base, "data")
	s.run(t, "initdb", "-D", s.dir, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
	options := fmt.Sprintf("-p %d -c listen_addresses=127.0.0.1 -c unix_socket_directories='' -c max_connections=200", s.port)
	s.run(t, "pg_ctl", "start", "-s", "-w", "-D", s.dir, "-l", filepath.Join(base, "log"), "-o", options)
	t.Cleanup(func() { s.run(t, "pg_ctl", "stop", "-s", "-m", "immediate", "-D", s.dir) })
	return s
}

func (s *postgres) url() string {
	return fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable", s.port)
}

// restart ends every session at once, as a crash would, and recovers.
func (s *postgres) restart(t *testing.T) {
	s.run(t, "pg_ctl", "restart", "-s", "-w", "-m", "immediate", "-D", s.dir, "-l", filepath.Join(filepath.Dir(s.dir), "log"))
}

func (s *postgres) run(t *testing.T, name string, args ...string) {
	t.Helper()
	cmd := exec.Command(filepath.Join(s.bin, name), args...)
	cmd.Dir = filepath.Dir(s.dir)
	// A pipe would be inherited by the server and never end, so the output goes to a file.
	output, err := os.CreateTemp("", "idempotency-chaos")
	require.NoError(t, err)
	defer os.Remove(output.Name())
	defer output.Close()
	cmd.Stdout, cmd.Stderr = output, output
	if s.owner != nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.owner}
	}
	if err := cmd.Run(); err != nil {
		said, _ := os.ReadFile(output.Name())
		t.Fatalf("%s: %v\n%s", name, err, bytes.TrimSpace(said))
	}
}

func unprivileged(t *testing.T) *syscall.Credential {
	t.Helper()
	u, err := user.Lookup("postgres")
	if err != nil {
		u, err = user.Lookup("nobody")
	}
	require.NoError(t, err)
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	require.NoError(t, err)
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	require.NoError(t, err)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
}

func freePort(t *testing.T) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
}
