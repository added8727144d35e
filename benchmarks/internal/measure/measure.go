// Package measure runs cases side by side, so that whatever else the machine does falls
// on all of them, and compares them by medians.
package measure

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"slices"
	"time"
)

// Case is something that can be measured.
type Case struct {
	// Name is a Go benchmark's, without "Benchmark": Memory/op=fresh/by=fiber-v2.
	Name string
	// Run works for about d and says what that took.
	Run func(ctx context.Context, d time.Duration) (Sample, error)
}

// Sample is what one run of a case took.
type Sample struct {
	Ops     int
	Elapsed time.Duration
	Mallocs uint64
	Bytes   uint64
	Counts  map[string]float64 // further figures of the run, by name
}

// Seconds is the time of one operation.
func (s Sample) Seconds() float64 { return s.Elapsed.Seconds() / float64(s.Ops) }

// Rate is operations in a second.
func (s Sample) Rate() float64 { return float64(s.Ops) / s.Elapsed.Seconds() }

// AllocsPerOp is how many objects one operation allocated, in this process.
func (s Sample) AllocsPerOp() float64 { return float64(s.Mallocs) / float64(s.Ops) }

// BytesPerOp is how many bytes one operation allocated, in this process.
func (s Sample) BytesPerOp() float64 { return float64(s.Bytes) / float64(s.Ops) }

// Add adds what work took to s. It counts the allocations of the whole process.
func (s *Sample) Add(work func() (ops int, err error)) error {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	began := time.Now()
	ops, err := work()
	s.Elapsed += time.Since(began)
	runtime.ReadMemStats(&after)
	s.Ops += ops
	s.Mallocs += after.Mallocs - before.Mallocs
	s.Bytes += after.TotalAlloc - before.TotalAlloc
	return err
}

// Results are the samples of each case by its name, one for each round.
type Results map[string][]Sample

// Interleave runs every case once in each round, A B C A B C, and before that once for a
// tenth of the time, to warm up, which is not kept. It writes a line to progress before
// each round.
func Interleave(ctx context.Context, cases []Case, rounds int, d time.Duration, progress io.Writer) (Results, error) {
	results := Results{}
	for round := range rounds + 1 {
		length := d
		if round == 0 {
			length = d / 10
			fmt.Fprintf(progress, "warming up %d cases\n", len(cases))
		} else {
			fmt.Fprintf(progress, "round %d of %d\n", round, rounds)
		}
		for _, c := range cases {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			runtime.GC() // what others have left behind is not this case's
			sample, err := c.Run(ctx, length)
			if err == nil && sample.Ops == 0 && round > 0 {
				err = fmt.Errorf("not one operation in %v", length)
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", c.Name, err)
			}
			if round > 0 {
				results[c.Name] = append(results[c.Name], sample)
			}
		}
	}
	return results, nil
}

// Median is the median of what of gives for the samples of a case, or false if the case
// was not run.
func (r Results) Median(name string, of func(Sample) float64) (float64, bool) {
	return r.median(func(s []Sample) float64 { return of(s[0]) }, name)
}

// MedianOf is the median, over rounds, of what of makes of the samples that the cases
// had in one round: two cases are compared by how they did at nearly the same time.
func (r Results) MedianOf(of func([]Sample) float64, names ...string) (float64, bool) {
	return r.median(of, names...)
}

func (r Results) median(of func([]Sample) float64, names ...string) (float64, bool) {
	var values []float64
	for round := range r[names[0]] {
		samples := make([]Sample, len(names))
		for i, name := range names {
			if round >= len(r[name]) {
				return 0, false
			}
			samples[i] = r[name][round]
		}
		values = append(values, of(samples))
	}
	if len(values) == 0 {
		return 0, false
	}
	return Median(values), true
}

// Median sorts values, of which there is one at least, and returns the middle.
func Median(values []float64) float64 {
	slices.Sort(values)
	n := len(values)
	return (values[(n-1)/2] + values[n/2]) / 2
}

// WriteBenchmarks writes every sample as a line of a Go benchmark, for benchstat.
func (r Results) WriteBenchmarks(w io.Writer, cases []Case) {
	fmt.Fprintf(w, "goos: %s\ngoarch: %s\n", runtime.GOOS, runtime.GOARCH)
	for _, c := range cases {
		for _, s := range r[c.Name] {
			fmt.Fprintf(w, "Benchmark%s-%d\t%d\t%.1f ns/op\t%.1f op/s", c.Name, runtime.GOMAXPROCS(0),
				s.Ops, s.Seconds()*1e9, s.Rate())
			if s.Mallocs > 0 {
				fmt.Fprintf(w, "\t%.0f B/op\t%.0f allocs/op", s.BytesPerOp(), s.AllocsPerOp())
			}
			fmt.Fprintln(w)
		}
	}
}
