// Soak loads the middleware on PostgreSQL at a chosen rate for a chosen time, with
// duplicates, mismatches and slow handlers among the requests, a short TTL and the
// sweeper at work, and looks for a key that ran twice:
//
//	./scripts/test.sh -- go -C benchmarks run ./cmd/soak -rate 500 -for 1m
//
// The load is an open loop: requests come at the rate whatever becomes of those before,
// and a latency counts from when its request was due, not from when it could be sent. It
// prints a line a second, then a report, and exits with 1 if a key ran twice or a
// duplicate got another answer. Its database is dropped in the end.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed-2d1e5f61/idempotency"
	"github.com/seed-2d1e5f61/idempotency/benchmarks/internal/command"
	"github.com/seed-2d1e5f61/idempotency/benchmarks/internal/load"
	"github.com/seed-2d1e5f61/idempotency/benchmarks/internal/tempdb"
)

type options struct {
	rate                         float64
	length, ttl, slowness        time.Duration
	duplicates, mismatches, slow float64
	callers, connections         int
	database                     string
}

func main() { command.Main("soak", parse, run) }

func parse(args []string) (o options, err error) {
	flags := flag.NewFlagSet("soak", flag.ContinueOnError)
	flags.Float64Var(&o.rate, "rate", 200, "requests a second")
	flags.DurationVar(&o.length, "for", 10*time.Second, "how long")
	flags.DurationVar(&o.ttl, "ttl", 5*time.Second, "how long a record lives")
	flags.Float64Var(&o.duplicates, "duplicates", 0.2, "share of requests that repeat one of late")
	flags.Float64Var(&o.mismatches, "mismatches", 0.02, "share that use a key of late for another payload")
	flags.Float64Var(&o.slow, "slow", 0.05, "share of handlers that are slow")
	flags.DurationVar(&o.slowness, "slowness", 200*time.Millisecond, "how slow")
	flags.IntVar(&o.callers, "callers", 1000, "requests under way at most; others wait, which counts")
	flags.IntVar(&o.connections, "connections", 16, "size of the pool")
	flags.StringVar(&o.database, "database", tempdb.FromEnv(), "a PostgreSQL server, as a postgres:// URL")
	if err := command.Parse(flags, args); err != nil {
		return o, err
	}
	share := func(f float64) bool { return f >= 0 && f <= 1 }
	switch {
	case !(o.rate > 0 && o.rate <= 1e6):
		return o, errors.New("-rate must be more than 0, and 1000000 at most")
	case o.length < time.Second:
		return o, errors.New("-for must be 1s or more")
	case o.ttl < lease:
		return o, fmt.Errorf("-ttl must be %v or more", lease)
	case !share(o.duplicates) || !share(o.mismatches) || !share(o.slow) || o.duplicates+o.mismatches > 1:
		return o, errors.New("-duplicates, -mismatches and -slow are shares from 0 to 1, the first two together too")
	case o.slowness < 0 || o.slowness > lease:
		return o, fmt.Errorf("-slowness must be from 0 to %v", lease)
	case o.callers < 1 || o.connections < 1:
		return o, errors.New("-callers and -connections must be 1 or more")
	case o.database == "":
		return o, errors.New("no -database, and no DATABASE_URL (./scripts/test.sh -- starts a server)")
	}
	return o, nil
}

// lease is also the shortest TTL.
const lease = time.Second

func run(ctx context.Context, o options, out io.Writer) (err error) {
	url, drop, err := tempdb.Create(ctx, o.database)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, drop()) }()
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return err
	}
	cfg.MaxConns = int32(o.connections) + 2 // for the sweeper, and for the line a second
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer pool.Close()
	store, err := load.Store(ctx, pool, idempotency.PostgresConfig{})
	if err != nil {
		return err
	}
	sweeping, stopSweeping := context.WithCancel(ctx)
	defer stopSweeping()
	go idempotency.RunSweeper(sweeping, store, time.Second)

	s := newSoak(o)
	protect, err := idempotency.New(store, idempotency.Config{
		Tenant: idempotency.SingleTenant, Lease: lease, TTL: o.ttl, Observe: s.observe,
	})
	if err != nil {
		return err
	}
	s.load(ctx, protect.Handler(s), pool, out)
	if err := protect.Drain(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	return s.report(out)
}
