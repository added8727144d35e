package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seed-2d1e5f61/idempotency/internal/testdb"
)

func TestNonsenseIsRefused(t *testing.T) {
	for _, args := range []string{"-rounds 0", "-for 1ns", "-many 5", "-rounds x", "-unknown", "more"} {
		if _, err := parse(strings.Fields(args)); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v; want an error in one line", args, err)
		}
	}
}

// A short run gives every table.
func TestRun(t *testing.T) {
	o := options{rounds: 1, length: 200 * time.Millisecond, many: 10 * few, database: testdb.URL(t), out: t.TempDir()}
	var out strings.Builder
	if err := run(t.Context(), o, &out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"fresh, fiber-v3", "| memory, replay |", "| PostgreSQL, replay |", "| 256 callers |", "against pgbench", "against one indexed SELECT"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
	for _, name := range []string{"results.md", "results.txt", "results.svg"} {
		if info, err := os.Stat(filepath.Join(o.out, name)); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
}
