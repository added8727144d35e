// Consumer books payments from a queue that delivers every message at least once, and
// books each once. Start it and read what it prints:
//
//	go run ./examples/consumer
//
// With DATABASE_URL it keeps its ledger in PostgreSQL. CRASH=3 then makes the process
// die while it books message m3. Start it again without CRASH: it is given m3 again and
// again until the dead process's lease has lapsed, a second after the crash, and then
// books it, with nothing lost and nothing booked twice:
//
//	CRASH=3 go run ./examples/consumer
//	go run ./examples/consumer
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/seed-2d1e5f61/idempotency"
)

func main() {
	if len(os.Args) > 1 {
		fmt.Fprintf(os.Stderr, "consumer: unknown argument %q; usage: [DATABASE_URL=...] [CRASH=n] consumer\n", os.Args[1])
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Getenv, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "consumer:", strings.ReplaceAll(err.Error(), "\n", "; "))
		os.Exit(1)
	}
}

// message is what the broker delivers. ID is the same for every delivery.
type message struct {
	ID     string
	Amount int
}

// stream is five payments. Two are sent twice, as a broker does that has not heard in
// time that they were received.
var stream = []message{
	{"m1", 100}, {"m2", 200}, {"m2", 200}, {"m3", 300}, {"m1", 100}, {"m4", 400}, {"m5", 500},
}

func run(ctx context.Context, getenv func(string) string, out io.Writer) error {
	crash := ""
	if value := getenv("CRASH"); value != "" {
		crash = "m" + value
		if !slices.ContainsFunc(stream, func(m message) bool { return m.ID == crash }) {
			return fmt.Errorf("CRASH=%q: want the number of a message, 1 to 5", value)
		}
		if getenv("DATABASE_URL") == "" {
			return errors.New("CRASH needs DATABASE_URL: what is in memory dies with the process")
		}
	}
	books, err := openBooks(ctx, getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer books.close()

	w := worker{
		consumer: idempotency.Consumer{
			Store: books.store,
			Name:  "ledger",
			Lease: time.Second,
			// What was not committed did not happen, so a message whose worker died may
			// simply be run again.
			AfterCrash: idempotency.Rerun,
		},
		books: books,
		crash: crash,
		out:   out,
	}
	for _, m := range stream {
		if err := w.receive(ctx, m); err != nil {
			return err
		}
	}
	entries, balance, err := books.total(ctx)
	if err == nil {
		fmt.Fprintf(out, "%d deliveries, %d entries, balance %d\n", len(stream), entries, balance)
	}
	return err
}

type worker struct {
	consumer idempotency.Consumer
	books    books
	crash    string // the message that the process dies of
	out      io.Writer
}

// receive handles one delivery, and stands for the broker too: what is not acknowledged
// is delivered again, later.
func (w *worker) receive(ctx context.Context, m message) error {
	for {
		booked, err := w.consumer.Do(ctx, m.ID, func(ctx context.Context) error {
			return w.books.add(ctx, m, func() {
				if m.ID == w.crash {
					fmt.Fprintf(w.out, "%s: dying while booking it\n", m.ID)
					os.Exit(137) // as if the machine were gone, in the middle of a transaction
				}
			})
		})
		switch {
		case err == nil && booked:
			fmt.Fprintf(w.out, "%s: booked %d\n", m.ID, m.Amount)
			return nil
		case err == nil:
			fmt.Fprintf(w.out, "%s: a duplicate\n", m.ID)
			return nil
		case !errors.Is(err, idempotency.ErrKeyInFlight) && !errors.Is(err, idempotency.ErrUnavailable):
			return err
		}
		fmt.Fprintf(w.out, "%s: not now (%v), delivered again\n", m.ID, err)
		select {
		case <-time.After(500 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
