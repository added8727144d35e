package main

import (
	"strings"
	"testing"
	"time"

	"github.com/seed-2d1e5f61/idempotency/internal/testdb"
)

func TestNonsenseIsRefused(t *testing.T) {
	for _, args := range []string{
		"-rate 0", "-rate -1", "-rate NaN", "-for 1ms", "-ttl 1ms", "-duplicates 2", "-duplicates 0.9 -mismatches 0.9",
		"-slow -1", "-slowness 1h", "-callers 0", "-connections 0", "-unknown", "more",
	} {
		_, err := parse(strings.Fields("-database postgres://x " + args))
		if err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v; want an error in one line", args, err)
		}
	}
}

func TestRun(t *testing.T) {
	url := testdb.URL(t)
	o, err := parse(strings.Fields("-rate 200 -for 3s -ttl 1s -slow 0.1 -database " + url))
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := run(t.Context(), o, &out); err != nil {
		t.Fatal(err, &out)
	}
	for _, want := range []string{"under way", "p99.9", "executed", "replayed", "mismatch", "double runs: 0"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
}

// A second run within the TTL is what the report is for.
func TestADoubleRunIsReported(t *testing.T) {
	s := newSoak(options{ttl: time.Minute})
	s.latencies = []time.Duration{time.Millisecond}
	s.doubles.Add(1)
	if err := s.report(new(strings.Builder)); err == nil {
		t.Error("no error")
	}
}
