package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/seed-2d1e5f61/idempotency/benchmarks/internal/load"
	"github.com/seed-2d1e5f61/idempotency/benchmarks/internal/measure"
)

func findPgbench() string {
	if path, err := exec.LookPath("pgbench"); err == nil {
		return path
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/pgbench")
	if len(found) == 0 {
		return ""
	}
	return found[len(found)-1]
}

var placeholder = regexp.MustCompile(`\$\d+`)

// writeScript writes the store's own two statements for pgbench, with values of the same
// length. The key is made from a random number, in hardly any time.
func (p *postgres) writeScript() error {
	insert, err := p.sql.find("INSERT", "common")
	if err != nil {
		return err
	}
	complete, err := p.sql.find("UPDATE", "common")
	if err != nil {
		return err
	}
	const id = "lpad(to_hex(:n::bigint), 32, '0')"
	fill := func(sql string, values ...string) string {
		return placeholder.ReplaceAllStringFunc(sql, func(s string) string {
			n, _ := strconv.Atoi(s[1:])
			return values[n-1]
		}) + ";\n"
	}
	body := "'" + strings.Repeat("x", len(load.ResponseBody)) + "'" // JSON's colons would be variables to pgbench
	script := "\\set n random(1, 9000000000000000000)\n" +
		fill(insert, id, "'single'", "'POST /charges'", id, "'\\x"+strings.Repeat("ab", 32)+"'", id, "30000000", "86400000000") +
		fill(complete, id, id, "201", "'\\x"+strings.Repeat("ab", 34)+"'", body, "''", "false", "86400000000")
	return os.WriteFile(filepath.Join(p.dir, "script.sql"), []byte(script), 0o600)
}

var tps = regexp.MustCompile(`number of transactions actually processed: (\d+)[\s\S]*tps = ([0-9.]+)`)

// runPgbench runs the same statements, on as many connections as the store has.
func (p *postgres) runPgbench(ctx context.Context, d time.Duration, callers int) (s measure.Sample, err error) {
	seconds := max(1, int(d.Seconds()))
	cmd := exec.CommandContext(ctx, p.pgbench, "-n", "-M", "prepared", "-j", "2", "-c", strconv.Itoa(min(callers, connections)),
		"-T", strconv.Itoa(seconds), "-f", filepath.Join(p.dir, "script.sql"), p.url)
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, exit.Stderr)
		}
		return s, err
	}
	match := tps.FindSubmatch(out)
	if match == nil {
		return s, errors.New("pgbench said nothing of its rate")
	}
	s.Ops, _ = strconv.Atoi(string(match[1]))
	rate, _ := strconv.ParseFloat(string(match[2]), 64)
	s.Elapsed = time.Duration(float64(s.Ops) / rate * float64(time.Second))
	return s, nil
}
