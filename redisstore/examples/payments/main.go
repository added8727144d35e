// Payments is a small payment service that keeps its idempotency records in Redis:
//
//	REDIS_URL=redis://127.0.0.1:6379 go run ./examples/payments
//
// It takes its configuration from the environment:
//
//	REDIS_URL     redis://127.0.0.1:6379 by default; several, separated by commas, are a cluster's
//	MIN_REPLICAS  how many replicas must have a claim before it counts, 0 by default
//	ADDR          where to listen, 127.0.0.1:8080 by default
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-2d1e5f61/idempotency"
	"github.com/seed-2d1e5f61/idempotency/redisstore"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Getenv, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "payments:", strings.ReplaceAll(err.Error(), "\n", "; "))
		os.Exit(1)
	}
}

// run serves until ctx ends, or something keeps it from serving.
func run(ctx context.Context, getenv func(string) string, out io.Writer) error {
	client, err := dial(cmp.Or(getenv("REDIS_URL"), "redis://127.0.0.1:6379"))
	if err != nil {
		return err
	}
	defer client.Close()
	if err := client.Ping(ctx).Err(); err != nil {
		return err
	}
	minReplicas, err := strconv.Atoi(cmp.Or(getenv("MIN_REPLICAS"), "0"))
	if err != nil {
		return fmt.Errorf("MIN_REPLICAS: %w", err)
	}
	store, err := redisstore.New(client, redisstore.Config{MinReplicas: minReplicas})
	if err != nil {
		return err
	}
	if err := store.Check(ctx); err != nil {
		fmt.Fprintf(out, "Records can get lost:\n%v\n", err) // a service may refuse to start instead
	}
	keys, err := idempotency.New(store, idempotency.Config{Tenant: tenant})
	if err != nil {
		return err
	}

	listener, err := net.Listen("tcp", cmp.Or(getenv("ADDR"), "127.0.0.1:8080"))
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("POST /v1/charges", authenticated(keys.Handler(newLedger())))
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(listener) }()
	welcome(out, listener.Addr())

	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		return errors.Join(srv.Shutdown(ctx), keys.Drain(ctx)) // before the client is closed
	}
}

// dial connects to one server, or to the cluster that several are part of.
func dial(urls string) (redis.UniversalClient, error) {
	var addrs []string
	var opt *redis.Options
	for u := range strings.SplitSeq(urls, ",") {
		var err error
		if opt, err = redis.ParseURL(strings.TrimSpace(u)); err != nil {
			var parse *url.Error
			if errors.As(err, &parse) {
				err = parse.Err // without the URL, which may hold a password
			}
			return nil, fmt.Errorf("REDIS_URL: %w", err)
		}
		addrs = append(addrs, opt.Addr)
	}
	if len(addrs) == 1 {
		opt.ContextTimeoutEnabled = true
		return redis.NewClient(opt), nil
	}
	return redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: addrs, Username: opt.Username, Password: opt.Password, TLSConfig: opt.TLSConfig,
		ContextTimeoutEnabled: true,
	}), nil
}

func welcome(out io.Writer, addr net.Addr) {
	curl := fmt.Sprintf(`  curl -i http://%s/v1/charges -H 'Authorization: Bearer sk_test_alice' -H 'Idempotency-Key: %s'`+
		` -H 'Content-Type: application/json' -d '{"order_id":"o-1","amount":1200,"currency":"jpy"}'`,
		addr, idempotency.NewKey())
	fmt.Fprintf(out, "Listening on http://%s.\nCharge twice with one key. The second answer is the first one's replay:\n\n%s\n\n%s\n\n",
		addr, curl, curl)
}
