package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed-2d1e5f61/idempotency"
	"github.com/seed-2d1e5f61/idempotency/examples/internal/charges"
)

// backend is where charges and records live: in memory, or in PostgreSQL.
type backend struct {
	name  string
	store idempotency.Store
	api   api
	close func()
}

func openBackend(ctx context.Context, cfg config) (*backend, error) {
	if cfg.database == nil {
		return memoryBackend(cfg), nil
	}
	return postgresBackend(ctx, cfg)
}

func memoryBackend(cfg config) *backend {
	return &backend{
		name:  "memory",
		store: &idempotency.MemoryStore{},
		api: api{
			ledger:  &charges.MemoryLedger{},
			network: &charges.MemoryNetwork{Latency: cfg.latency},
		},
		close: func() {},
	}
}

func postgresBackend(ctx context.Context, cfg config) (*backend, error) {
	db, err := pgxpool.NewWithConfig(ctx, cfg.database)
	if err != nil {
		return nil, err
	}
	store, err := idempotency.NewPostgresStore(db, idempotency.PostgresConfig{})
	if err == nil {
		err = migrate(ctx, db, store)
	}
	if err != nil {
		db.Close()
		return nil, fmt.Errorf("DATABASE_URL: %w", err)
	}

	// Expiry works without the sweeper; it keeps the table small.
	sweeping, stopSweeping := context.WithCancel(context.Background())
	go idempotency.RunSweeper(sweeping, store, time.Minute)

	return &backend{
		name:  "PostgreSQL",
		store: store,
		api: api{
			ledger:  &charges.PostgresLedger{DB: db, Store: store},
			network: &charges.PostgresNetwork{DB: db, Latency: cfg.latency},
		},
		close: func() {
			stopSweeping()
			db.Close()
		},
	}, nil
}

func migrate(ctx context.Context, db *pgxpool.Pool, store *idempotency.PostgresStore) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	if err := store.Migrate(ctx); err != nil {
		return err
	}
	return charges.Migrate(ctx, db)
}
