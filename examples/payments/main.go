// Payments is a small payment service whose charges are safe to retry. Start it and
// follow what it prints:
//
//	go run ./examples/payments
//
// It takes its configuration from the environment:
//
//	ADDR                  where to listen, 127.0.0.1:8080 by default
//	DATABASE_URL          PostgreSQL; without it everything is kept in memory
//	CARD_NETWORK_LATENCY  how long a charge takes, 50ms by default
//	LEASE                 how late a crash is noticed, 30s by default
//	AFTER_CRASH           what a retry meets after one: hold (default) or rerun
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/seed-2d1e5f61/idempotency"
)

func main() {
	if len(os.Args) > 1 {
		fmt.Fprintf(os.Stderr, "payments: unknown argument %q; usage: [ADDR=host:port] [DATABASE_URL=...] "+
			"[CARD_NETWORK_LATENCY=d] [LEASE=d] [AFTER_CRASH=hold|rerun] payments\n", os.Args[1])
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	if err := run(ctx, os.Getenv, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "payments:", oneLine(err))
		os.Exit(1)
	}
}

// run serves until ctx ends, or something keeps it from serving.
func run(ctx context.Context, getenv func(string) string, out io.Writer) error {
	cfg, err := configFrom(getenv)
	if err != nil {
		return err
	}
	// Listening comes first: a taken address must stop the program before it has
	// touched the database.
	listener, err := net.Listen("tcp", cfg.addr)
	if err != nil {
		return err
	}
	defer listener.Close()

	b, err := openBackend(ctx, cfg)
	if err != nil {
		return err
	}
	defer b.close()

	keys, err := idempotency.New(b.store, cfg.idempotency())
	if err != nil {
		return err
	}
	srv := newServer(cfg, newHandler(keys, &b.api))
	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(listener) }()
	welcome(out, listener.Addr(), b.name)

	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
		return shutDown(srv, keys, cfg.handlerTimeout()+5*time.Second)
	}
}

// shutDown lets running charges finish. Shutdown alone does not wait for those whose
// client has left, so Drain follows; only then may the database be closed.
func shutDown(srv *http.Server, keys *idempotency.Middleware, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return errors.Join(srv.Shutdown(ctx), keys.Drain(ctx))
}

func welcome(out io.Writer, addr net.Addr, records string) {
	curl := fmt.Sprintf(`  curl -i http://%s/v1/charges -H 'Authorization: Bearer sk_test_alice' -H 'Idempotency-Key: %s'`+
		` -H 'Content-Type: application/json' -d '{"amount":1200,"currency":"jpy","source":"tok_visa"}'`,
		addr, idempotency.NewKey())
	fmt.Fprintf(out, "Listening on http://%s, records in %s.\n", addr, records)
	fmt.Fprintf(out, "Charge a card twice with one key. The second answer is the first one's replay:\n\n%s\n\n%s\n\n", curl, curl)
}

// oneLine keeps an error of several lines, such as a joined one, readable in a log.
func oneLine(err error) string {
	return strings.NewReplacer("\n\t", " ", "\n", "; ").Replace(err.Error())
}
