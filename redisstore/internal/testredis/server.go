// Package testredis gives tests real Redis servers: processes of their own on free
// loopback ports, in temporary directories, that end with the test.
package testredis

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
)

// go-redis would report each failed call, of which these tests make many on purpose.
func init() { logging.Disable() }

// Server is one redis-server process.
type Server struct {
	Addr string
	Dir  string // its working directory

	bus    string // the port on which nodes of a cluster talk
	args   []string
	client *redis.Client
	cmd    *exec.Cmd
	ended  chan struct{}
}

// Start starts a server, without persistence unless the lines of configuration say
// otherwise. Without redis-server on PATH it ends the test: as failed where the
// variable CI is set, as skipped elsewhere.
func Start(t testing.TB, config ...string) *Server {
	t.Helper()
	need(t)
	return start(t, func() []string {
		return append([]string{"save ''", "appendonly no", "repl-diskless-sync-delay 0"}, config...)
	})
}

func need(t testing.TB) {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err == nil {
		return
	}
	if os.Getenv("CI") != "" {
		t.Fatal("this test needs redis-server on PATH; run ./scripts/test.sh, which brings it")
	}
	t.Skip("SKIPPED WITHOUT REDIS: run ./scripts/test.sh, which brings it")
}

// start tries again, with new ports, if somebody was faster to take one.
func start(t testing.TB, config func() []string, args ...string) *Server {
	t.Helper()
	for range 10 {
		port := freePort(t)
		s := &Server{Addr: net.JoinHostPort("127.0.0.1", port), Dir: t.TempDir()}
		s.client = redis.NewClient(&redis.Options{Addr: s.Addr, MaxRetries: -1, DialerRetries: 1})
		t.Cleanup(func() { _ = s.client.Close() })

		file := filepath.Join(s.Dir, "redis.conf")
		lines := append([]string{"bind 127.0.0.1", "port " + port}, config()...)
		if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
			t.Fatal(err)
		}
		s.args = append([]string{file}, args...)
		if s.run(t) {
			return s
		}
		log, _ := os.ReadFile(filepath.Join(s.Dir, "log"))
		t.Logf("redis-server did not start:\n%s", log)
	}
	t.Fatal("redis-server does not start")
	return nil
}

func freePort(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}

// run starts the process and reports whether it has come up.
func (s *Server) run(t testing.TB) bool {
	t.Helper()
	log, err := os.OpenFile(filepath.Join(s.Dir, "log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd, ended := exec.Command("redis-server", s.args...), make(chan struct{})
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.Dir, log, log
	cmd.SysProcAttr = endWithParent()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(ended)
		_ = cmd.Wait() // killed, as a rule
	}()
	s.cmd, s.ended = cmd, ended
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended already
		<-ended
	})

	own := fmt.Sprintf("process_id:%d\r", cmd.Process.Pid) // not another test's server on the same port
	up := false
	Eventually(t, "server "+s.Addr+" answers", func() bool {
		info, err := s.client.Info(t.Context(), "server").Result()
		up = err == nil && strings.Contains(info, own)
		select {
		case <-ended:
			return true
		default:
			return up
		}
	})
	return up
}

// Kill ends the server as a crash would: at once, with nothing written any more. With
// links it is its machine that dies, and what is on its way over them is lost.
func (s *Server) Kill(links ...*Link) {
	_ = s.cmd.Process.Kill()
	for _, l := range links {
		l.Cut()
	}
	<-s.ended
}

// Restart starts the server again after Kill, with the files and the port that it had.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	Eventually(t, "server "+s.Addr+" is back", func() bool { return s.run(t) })
}

// Client returns a client that is closed with the test.
func (s *Server) Client(t testing.TB) *redis.Client {
	t.Helper()
	c := redis.NewClient(&redis.Options{Addr: s.Addr, ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// Do sends the server one command.
func (s *Server) Do(t testing.TB, args ...any) any {
	t.Helper()
	reply, err := s.client.Do(t.Context(), args...).Result()
	if err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	return reply
}

// Eventually waits until condition holds, and fails the test if it does not in a time
// that is ample on a slow machine.
func Eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatalf("still waiting until %s", what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// Replicate makes the server a replica of another, and waits until it is in step.
func (s *Server) Replicate(t testing.TB, primary *Server) {
	t.Helper()
	host, port, _ := net.SplitHostPort(primary.Addr)
	s.Do(t, "REPLICAOF", host, port)
	Eventually(t, "replica "+s.Addr+" is in step", func() bool { return primary.feeds(t.Context(), s) })
}

// feeds reports whether replica is in step, as both see it: s calls it online before it
// has loaded what it was sent.
func (s *Server) feeds(ctx context.Context, replica *Server) bool {
	_, port, _ := net.SplitHostPort(replica.Addr)
	mine, err := s.client.Info(ctx, "replication").Result()
	if err != nil || !strings.Contains(mine, "port="+port+",state=online") {
		return false
	}
	its, err := replica.client.Info(ctx, "replication").Result()
	return err == nil && strings.Contains(its, "master_link_status:up")
}
