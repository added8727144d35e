package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-2d1e5f61/idempotency/benchmarks/internal/load"
	"github.com/seed-2d1e5f61/idempotency/benchmarks/internal/measure"
	"github.com/seed-2d1e5f61/idempotency/redisstore"
)

// redisServer is a server of its own with everything in its append-only file before it
// answers, as a record of money would have it.
type redisServer struct {
	cmd      *exec.Cmd
	dir      string
	client   *redis.Client
	handler  http.Handler
	replayed string
}

// openRedis returns nil, and why, where there is no Redis.
func openRedis(ctx context.Context) (*redisServer, string) {
	r := &redisServer{replayed: load.NewKey()}
	if err := r.start(ctx); err != nil {
		r.close()
		return nil, err.Error()
	}
	return r, ""
}

func (r *redisServer) start(ctx context.Context) error {
	binary, err := exec.LookPath("redis-server")
	if err != nil {
		return err
	}
	if r.dir, err = os.MkdirTemp("", "idempotency-bench"); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	addr := listener.Addr().(*net.TCPAddr)
	listener.Close()
	cmd := exec.Command(binary, "--port", fmt.Sprint(addr.Port), "--bind", "127.0.0.1", "--dir", r.dir,
		"--save", "", "--appendonly", "yes", "--appendfsync", "always")
	if err := cmd.Start(); err != nil {
		return err
	}
	r.cmd = cmd
	r.client = redis.NewClient(&redis.Options{Addr: addr.String(), PoolSize: connections})
	for deadline := time.Now().Add(10 * time.Second); r.client.Ping(ctx).Err() != nil; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			return fmt.Errorf("redis-server does not answer on %s", addr)
		}
	}
	store, err := redisstore.New(r.client, redisstore.Config{})
	if err != nil {
		return err
	}
	if r.handler, err = load.Middleware(store, load.Handler); err != nil {
		return err
	}
	return load.NewClient(r.handler).Expect(r.replayed, false)
}

func (r *redisServer) close() {
	if r.client != nil {
		r.client.Close()
	}
	if r.cmd != nil {
		r.cmd.Process.Kill()
		r.cmd.Wait()
	}
	os.RemoveAll(r.dir)
}

func (r *redisServer) cases() []measure.Case {
	pool := clients(r.handler)
	send := func(replay bool) func(context.Context, time.Duration) (measure.Sample, error) {
		return func(ctx context.Context, d time.Duration) (measure.Sample, error) {
			return together(ctx, d, connections, func() error {
				client := pool.Get().(*load.Client)
				defer pool.Put(client)
				key := r.replayed
				if !replay {
					key = load.NewKey()
				}
				return client.Expect(key, replay)
			})
		}
	}
	return []measure.Case{
		{Name: "Redis/op=fresh/callers=16", Run: send(false)},
		{Name: "Redis/op=replay/callers=16", Run: send(true)},
	}
}
