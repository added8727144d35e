package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/seed-2d1e5f61/idempotency/benchmarks/internal/chart"
	"github.com/seed-2d1e5f61/idempotency/benchmarks/internal/measure"
)

// report is what a run has found.
type report struct {
	results        measure.Results
	left           []string
	o              options
	bytes, payload float64 // of a live record in memory
}

// write prints the table and leaves it, a plot and every sample in the directory for
// results.
func (r report) write(out io.Writer, cases []measure.Case) error {
	table := r.table()
	if _, err := io.WriteString(out, table); err != nil {
		return err
	}
	if err := r.o.create("results.md", func(w io.Writer) { io.WriteString(w, table) }); err != nil {
		return err
	}
	if err := r.o.create("results.txt", func(w io.Writer) { r.results.WriteBenchmarks(w, cases) }); err != nil {
		return err
	}
	return r.o.create("results.svg", func(w io.Writer) { chart.Write(w, "Fresh requests, times the rate of pgbench", r.bars()) })
}

func (r report) table() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Medians of %d interleaved rounds of %v; ratios are medians of the ratios in a round.\n", r.o.rounds, r.o.length)
	r.memory(&b)
	r.live(&b)
	r.postgres(&b)
	for _, what := range r.left {
		fmt.Fprintf(&b, "\nLeft out. %s.\n", what)
	}
	return b.String()
}

// added is what of one case is added to another's, in the samples of one round.
func added(of func(measure.Sample) float64) func([]measure.Sample) float64 {
	return func(s []measure.Sample) float64 { return of(s[1]) - of(s[0]) }
}

func (r report) memory(b *strings.Builder) {
	b.WriteString("\n| in memory, added to the bare handler | time | against fiber-v2 | allocations | bytes |\n|---|---|---|---|---|\n")
	name := func(op, by string) string { return "Memory/op=" + op + "/by=" + by }
	for _, op := range []string{"fresh", "replay"} {
		for _, impl := range implementations {
			pair := []string{name("bare", impl.name), name(op, impl.name)}
			seconds, _ := r.results.MedianOf(added(measure.Sample.Seconds), pair...)
			allocs, _ := r.results.MedianOf(added(measure.Sample.AllocsPerOp), pair...)
			bytes, _ := r.results.MedianOf(added(measure.Sample.BytesPerOp), pair...)
			against, _ := r.results.MedianOf(func(s []measure.Sample) float64 {
				return (s[1].Seconds() - s[0].Seconds()) / (s[3].Seconds() - s[2].Seconds())
			}, append(pair, name("bare", "fiber-v2"), name(op, "fiber-v2"))...)
			fmt.Fprintf(b, "| %s, %s | %v | %.2f | %.0f | %.0f |\n", op, impl.name, nanoseconds(seconds), against, allocs, bytes)
		}
	}
	fmt.Fprintf(b, "\nA live record takes %.0f bytes of memory for %.0f of payload.\n", r.bytes, r.payload)
}

func nanoseconds(seconds float64) time.Duration {
	return time.Duration(seconds * float64(time.Second)).Round(10 * time.Nanosecond)
}

func (r report) live(b *strings.Builder) {
	fmt.Fprintf(b, "\n| beside %d live records | time, against %d |\n|---|---|\n", r.o.many, few)
	for _, op := range []string{"fresh", "replay"} {
		if ratio, ok := r.ratio(measure.Sample.Seconds, flatName("memory", op, r.o.many), flatName("memory", op, few)); ok {
			fmt.Fprintf(b, "| memory, %s | %.2f |\n", op, ratio)
		}
		if ratio, ok := r.ratio(measure.Sample.Seconds, postgresName(op+"-live", "grouped", connections),
			postgresName(op, "grouped", connections)); ok {
			fmt.Fprintf(b, "| PostgreSQL, %s | %.2f |\n", op, ratio)
		}
	}
}

// ratio is the median of what a takes to what b takes.
func (r report) ratio(of func(measure.Sample) float64, a, b string) (float64, bool) {
	return r.results.MedianOf(func(s []measure.Sample) float64 { return of(s[0]) / of(s[1]) }, a, b)
}

func (r report) postgres(b *strings.Builder) {
	rate := measure.Sample.Rate
	r.callers(b, "fresh", "pgbench", "pgbench")
	r.callers(b, "replay", "select", "one indexed SELECT by pgxpool")
	b.WriteString("\n| | ratio of rates |\n|---|---|\n")
	for _, row := range []struct{ what, a, b string }{
		{"PostgreSQL: a replay of what another process recorded, against one indexed SELECT", postgresName("replay-elsewhere", "grouped", connections), postgresName("replay", "select", connections)},
		{"PostgreSQL: 200 duplicates of one fresh key at once, against fresh requests by 16", postgresName("hot", "grouped", 200), postgresName("fresh", "grouped", connections)},
		{"Redis (fsync always), fresh, against PostgreSQL", "Redis/op=fresh/callers=16", postgresName("fresh", "grouped", connections)},
		{"Redis, replay, against PostgreSQL", "Redis/op=replay/callers=16", postgresName("replay", "grouped", connections)},
	} {
		if ratio, ok := r.ratio(rate, row.a, row.b); ok {
			fmt.Fprintf(b, "| %s | %.2f |\n", row.what, ratio)
		}
	}
}

// callers is a table of what a number of callers get done at once.
func (r report) callers(b *strings.Builder, op, floor, name string) {
	rate := measure.Sample.Rate
	fmt.Fprintf(b, "\n| PostgreSQL, %s, %d connections | requests a second | against single statements | against %s |\n|---|---|---|---|\n",
		op, connections, name)
	for _, callers := range callerCounts {
		grouped := postgresName(op, "grouped", callers)
		requests, ok := r.results.Median(grouped, rate)
		if !ok {
			continue
		}
		alone, _ := r.ratio(rate, grouped, postgresName(op, "alone", callers))
		against := "-"
		if ratio, ok := r.ratio(rate, grouped, postgresName(op, floor, callers)); ok {
			against = fmt.Sprintf("%.2f", ratio)
		}
		fmt.Fprintf(b, "| %d callers | %.0f | %.2f | %s |\n", callers, requests, alone, against)
	}
}

// bars are the ratios to pgbench, with and without shared statements.
func (r report) bars() []chart.Bar {
	var bars []chart.Bar
	for _, callers := range callerCounts {
		for _, by := range []string{"alone", "grouped"} {
			ratio, ok := r.ratio(measure.Sample.Rate, postgresName("fresh", by, callers), postgresName("fresh", "pgbench", callers))
			if ok {
				bars = append(bars, chart.Bar{Label: fmt.Sprintf("%d callers, %s", callers, by), Value: ratio})
			}
		}
	}
	return bars
}
