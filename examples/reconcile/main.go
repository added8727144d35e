// Reconcile settles charges of the payments example whose process died. Their keys are
// held, because nobody knew whether the card was charged; reconcile looks it up.
//
//	export DATABASE_URL=postgres://...
//	go run ./examples/reconcile list
//	go run ./examples/reconcile resolve ch_8d3f...    # one of the list
//	go run ./examples/reconcile resolve -all
//
// List changes nothing and shows what resolve would do. A charge that was made is
// booked, and the client's next retry gets the 201 it has been waiting for. Where none
// was made the key is freed, and the retry runs from the beginning.
//
// Not listed is a charge that could not be booked and was answered 503: its key is free,
// and the client's retry books it. If none comes, the money stays taken without a claim
// that shows it. For that, a service compares the card network's own statement with its
// ledger.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed-2d1e5f61/idempotency"
	"github.com/seed-2d1e5f61/idempotency/examples/internal/charges"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	context.AfterFunc(ctx, stop)
	if err := run(ctx, os.Args[1:], os.Getenv("DATABASE_URL"), os.Stdout); err != nil {
		message := strings.NewReplacer("\n\t", " ", "\n", "; ").Replace(err.Error())
		fmt.Fprintln(os.Stderr, "reconcile:", message)
		os.Exit(1)
	}
}

var errUsage = errors.New("usage: reconcile list [-limit n] | resolve [-limit n] (-all | charge-id...)")

func run(ctx context.Context, args []string, databaseURL string, out io.Writer) error {
	cmd, err := parse(args)
	if err != nil {
		return err
	}
	if databaseURL == "" {
		return errors.New("DATABASE_URL: want the database of the payments example")
	}
	db, err := pgxpool.New(ctx, databaseURL)
	if err != nil {
		return fmt.Errorf("DATABASE_URL: %w", err)
	}
	defer db.Close()
	store, err := idempotency.NewPostgresStore(db, idempotency.PostgresConfig{})
	if err != nil {
		return err
	}
	r := &reconciler{
		store:   store,
		ledger:  &charges.PostgresLedger{DB: db, Store: store},
		network: &charges.PostgresNetwork{DB: db},
		out:     out,
	}
	if cmd.resolve {
		return r.resolve(ctx, cmd.limit, cmd.ids)
	}
	return r.list(ctx, cmd.limit)
}

// command is what the arguments ask for.
type command struct {
	resolve bool
	ids     []string // of the charges to resolve; none: all
	limit   int
}

func parse(args []string) (command, error) {
	var (
		c   command
		all bool
	)
	flags := flag.NewFlagSet("reconcile", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // the error says it, in one line
	flags.IntVar(&c.limit, "limit", 1000, "")
	if len(args) == 0 {
		return c, errUsage
	}
	switch args[0] {
	case "list":
	case "resolve":
		c.resolve = true
		flags.BoolVar(&all, "all", false, "")
	default:
		return c, errUsage
	}
	if err := flags.Parse(args[1:]); err != nil {
		return c, fmt.Errorf("%w; %w", err, errUsage)
	}
	c.ids = flags.Args()
	oneOfBoth := all != (len(c.ids) > 0)
	if c.limit < 1 || c.resolve != oneOfBoth {
		return c, errUsage
	}
	return c, nil
}
