// Sizes prints what fresh requests leave in PostgreSQL: bytes of table and index for a
// record, bytes of WAL for a request, and the share of completions that are HOT updates.
//
//	./scripts/test.sh -- go -C benchmarks run ./cmd/sizes
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed-2d1e5f61/idempotency"
	"github.com/seed-2d1e5f61/idempotency/benchmarks/internal/command"
	"github.com/seed-2d1e5f61/idempotency/benchmarks/internal/load"
	"github.com/seed-2d1e5f61/idempotency/benchmarks/internal/tempdb"
)

type options struct {
	records  int
	database string
}

func main() { command.Main("sizes", parse, run) }

func parse(args []string) (o options, err error) {
	flags := flag.NewFlagSet("sizes", flag.ContinueOnError)
	flags.IntVar(&o.records, "records", 50_000, "how many")
	flags.StringVar(&o.database, "database", tempdb.FromEnv(), "a PostgreSQL server, as a postgres:// URL")
	if err := command.Parse(flags, args); err != nil {
		return o, err
	}
	if o.records < 1000 {
		return o, errors.New("-records must be 1000 or more")
	}
	return o, nil
}

func run(ctx context.Context, o options, out io.Writer) error {
	fmt.Fprintln(out, "| callers | table | indexes | WAL | HOT |\n|---|---|---|---|---|")
	for _, callers := range []int{4, 16, 64} {
		if err := measure(ctx, o.database, o.records, callers, out); err != nil {
			return err
		}
	}
	return nil
}

// measure fills a database of its own.
func measure(ctx context.Context, server string, records, callers int, out io.Writer) (err error) {
	url, drop, err := tempdb.Create(ctx, server)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, drop()) }()
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	store, err := load.Store(ctx, pool, idempotency.PostgresConfig{})
	if err != nil {
		return err
	}
	var before string
	if err := pool.QueryRow(ctx, "SELECT pg_current_wal_insert_lsn()::text").Scan(&before); err != nil {
		return err
	}
	if err := fill(store, records, callers); err != nil {
		return err
	}
	var table, indexes, wal, hot float64
	err = pool.QueryRow(ctx, "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), $1::text::pg_lsn)::float8", before).Scan(&wal)
	if err != nil {
		return err
	}
	// The server's processes report what they have done with a delay.
	for updates, deadline := 0, time.Now().Add(30*time.Second); updates < records; time.Sleep(100 * time.Millisecond) {
		err := pool.QueryRow(ctx, `SELECT n_tup_upd, n_tup_hot_upd::float8, pg_table_size(relid)::float8, pg_indexes_size(relid)::float8
			FROM pg_stat_user_tables`).Scan(&updates, &hot, &table, &indexes)
		if err == nil && time.Now().After(deadline) {
			err = errors.New("the server does not report the updates")
		}
		if err != nil {
			return err
		}
	}
	n := float64(records)
	_, err = fmt.Fprintf(out, "| %d | %.0f B | %.0f B | %.0f B | %.2f |\n", callers, table/n, indexes/n, wal/n, hot/n)
	return err
}

func fill(store idempotency.Store, records, callers int) error {
	handler, err := load.Middleware(store, load.Handler)
	if err != nil {
		return err
	}
	errs := make([]error, callers)
	var wg sync.WaitGroup
	for caller := range callers {
		wg.Go(func() {
			client := load.NewClient(handler)
			for n := caller; n < records && errs[caller] == nil; n += callers {
				errs[caller] = client.Expect(load.NewKey(), false)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
