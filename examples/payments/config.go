package main

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed-2d1e5f61/idempotency"
)

type config struct {
	addr       string
	database   *pgxpool.Config // nil: everything in memory
	latency    time.Duration   // of the simulated card network
	lease      time.Duration   // 0: the library's default
	afterCrash idempotency.AfterCrash
}

// configFrom reads the environment and reports everything that is wrong with it.
func configFrom(getenv func(string) string) (config, error) {
	cfg := config{
		addr:    cmp.Or(getenv("ADDR"), "127.0.0.1:8080"),
		latency: 50 * time.Millisecond,
	}
	var problems []error
	report := func(name, value, want string) {
		problems = append(problems, fmt.Errorf("%s=%q: %s", name, value, want))
	}

	if value := getenv("CARD_NETWORK_LATENCY"); value != "" {
		d, err := time.ParseDuration(value)
		if err != nil || d < 0 {
			report("CARD_NETWORK_LATENCY", value, "want a duration such as 50ms, 0 or more")
		}
		cfg.latency = d
	}
	if value := getenv("LEASE"); value != "" {
		d, err := time.ParseDuration(value)
		if err != nil || d <= 0 {
			report("LEASE", value, "want a duration such as 30s, more than 0")
		}
		cfg.lease = d
	}
	switch value := getenv("AFTER_CRASH"); value {
	case "", "hold":
		cfg.afterCrash = idempotency.Hold
	case "rerun":
		cfg.afterCrash = idempotency.Rerun
	default:
		report("AFTER_CRASH", value, "want hold or rerun")
	}
	if value := getenv("DATABASE_URL"); value != "" {
		database, err := pgxpool.ParseConfig(value)
		if err != nil {
			problems = append(problems, fmt.Errorf("DATABASE_URL: %w", err)) // without the password
		}
		cfg.database = database
	}
	return cfg, errors.Join(problems...)
}
