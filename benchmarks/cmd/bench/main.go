// Bench measures what the middleware and its stores cost, beside what they are compared
// to, and prints a table of medians and ratios. Cases are interleaved, so that whatever
// else the machine does falls on all of them.
//
//	./scripts/test.sh -- go -C benchmarks run ./cmd/bench
//
// runs all of it. The table (Markdown), a plot (SVG) and every sample (for benchstat) go
// to -out. PostgreSQL is the server that scripts/test.sh starts, or DATABASE_URL;
// without either, and for Redis without redis-server on PATH, these cases are left out,
// and the table says so. It leaves no database and no server behind.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/seed-2d1e5f61/idempotency/benchmarks/internal/command"
	"github.com/seed-2d1e5f61/idempotency/benchmarks/internal/measure"
	"github.com/seed-2d1e5f61/idempotency/benchmarks/internal/tempdb"
)

// few is a small number of live records; many is set by a flag.
const few = 1000

type options struct {
	rounds   int
	length   time.Duration
	many     int
	database string
	out      string
}

func main() { command.Main("bench", parse, run) }

func parse(args []string) (o options, err error) {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.IntVar(&o.rounds, "rounds", 5, "rounds, of which medians are taken")
	flags.DurationVar(&o.length, "for", time.Second, "how long a case runs in a round")
	flags.IntVar(&o.many, "many", 1_000_000, "live records beside which cost is compared")
	flags.StringVar(&o.database, "database", tempdb.FromEnv(), "a PostgreSQL server, as a postgres:// URL")
	flags.StringVar(&o.out, "out", "results", "where the results are written")
	if err := command.Parse(flags, args); err != nil {
		return o, err
	}
	switch {
	case o.rounds < 1 || o.rounds > 1000:
		return o, errors.New("-rounds must be from 1 to 1000")
	case o.length < 10*time.Millisecond || o.length > time.Hour:
		return o, errors.New("-for must be from 10ms to 1h")
	case o.many < 10*few || o.many > 100_000_000:
		return o, fmt.Errorf("-many must be from %d to 100000000", 10*few)
	}
	return o, nil
}

func run(ctx context.Context, o options, out io.Writer) (err error) {
	cases := append(memoryCases(), memoryFlatCases(o.many)...)
	var left []string // cases that cannot run here
	if o.database == "" {
		left = append(left, "PostgreSQL: no server (./scripts/test.sh -- starts one)")
	} else {
		p, err := openPostgres(ctx, o.database, o.many)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, p.close()) }()
		cases = append(cases, p.cases()...)
		left = append(left, p.left...)
	}
	r, why := openRedis(ctx)
	if r == nil {
		left = append(left, "Redis: "+why)
	} else {
		defer r.close()
		cases = append(cases, r.cases()...)
	}

	results, err := measure.Interleave(ctx, cases, o.rounds, o.length, os.Stderr)
	if err != nil {
		return err
	}
	bytes, payload, err := bytesPerRecord(100_000)
	if err != nil {
		return err
	}
	report := report{results, left, o, bytes, payload}
	return report.write(out, cases)
}

// create makes a file of the results.
func (o options) create(name string, write func(io.Writer)) error {
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(o.out, name))
	if err != nil {
		return err
	}
	write(f)
	return f.Close()
}
