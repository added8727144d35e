// Client pays for one order at the payments example and survives its own death: it
// saves the order with its key before the first request leaves. Kill it whenever you
// like and start it again with the same flags; the order is charged once.
//
//	go run ./examples/payments                       # in another terminal
//	go run ./examples/client -state order-17.json
//	go run ./examples/client -state order-17.json    # the same charge
//
// The API key comes from the environment: API_KEY, sk_test_1 by default.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/seed-2d1e5f61/idempotency"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	apiKey := cmp.Or(os.Getenv("API_KEY"), "sk_test_1")
	if err := run(ctx, os.Args[1:], apiKey, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "client:", oneLine(err.Error()))
		os.Exit(1)
	}
}

// patience bounds one run of the program. An order that is not paid by then is for the
// next run.
const patience = 2 * time.Minute

func run(ctx context.Context, args []string, apiKey string, out io.Writer) error {
	path, wanted, err := parse(args, out)
	if err != nil || path == "" {
		return err
	}
	o, err := openOrder(path, wanted)
	if err != nil {
		return err
	}
	if o.Charge == nil {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		if o.Charge, err = pay(ctx, newClient(), o, apiKey); err != nil {
			return fmt.Errorf("%w (the order is in %s)", err, path)
		}
		if err := o.replace(path); err != nil {
			return fmt.Errorf("paid with %s, which could not be saved: %w", o.Charge.ID, err)
		}
	}
	fmt.Fprintf(out, "paid %d %s with %s\n", o.Charge.Amount, o.Charge.Currency, o.Charge.ID)
	return nil
}

// parse returns the state file and the order that the flags describe. The path is
// empty if all that was asked for is help.
func parse(args []string, out io.Writer) (path string, o order, err error) {
	flags := flag.NewFlagSet("client", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // an error is one line
	flags.StringVar(&path, "state", "order.json", "the order's `file`, made if there is none")
	flags.StringVar(&o.URL, "url", "http://127.0.0.1:8080", "of the payment service")
	flags.Int64Var(&o.Amount, "amount", 1200, "in the currency's smallest unit")
	flags.StringVar(&o.Currency, "currency", "jpy", "ISO 4217 code in lower case")
	flags.StringVar(&o.Source, "source", "tok_visa", "token of the card")
	if err := flags.Parse(args); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			return "", order{}, err
		}
		flags.SetOutput(out)
		flags.Usage()
		fmt.Fprintln(out, "The API key comes from the environment: API_KEY, sk_test_1 by default.")
		return "", order{}, nil
	}
	u, err := url.Parse(o.URL)
	switch {
	case flags.NArg() > 0:
		return "", order{}, fmt.Errorf("%q: want flags only", flags.Arg(0))
	case path == "":
		return "", order{}, errors.New("-state: want a file")
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return "", order{}, fmt.Errorf("-url %q: want something like http://127.0.0.1:8080", o.URL)
	case o.Amount < 1:
		return "", order{}, fmt.Errorf("-amount %d: want 1 or more", o.Amount)
	}
	return path, o, nil
}

// newClient retries for as long as pay's context allows. ResponseHeaderTimeout turns a
// response that was lost without a sound into an error, and so into a retry.
func newClient() *http.Client {
	base := http.DefaultTransport.(*http.Transport).Clone()
	base.ResponseHeaderTimeout = 30 * time.Second
	return &http.Client{Transport: &idempotency.Transport{Base: base}}
}

// oneLine keeps what a server or the system says from filling the terminal.
func oneLine(s string) string {
	printable := strings.Map(func(c rune) rune {
		if c < ' ' || c == '\x7f' {
			return ' '
		}
		return c
	}, s)
	return strings.Join(strings.Fields(printable), " ")
}
