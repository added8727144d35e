package main

import (
	"context"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed-2d1e5f61/idempotency"
)

// books is a ledger, and the store that remembers which messages are in it.
type books struct {
	store idempotency.Store
	// add books m, and calls halfway when that is done but can still be lost.
	add   func(ctx context.Context, m message, halfway func()) error
	total func(ctx context.Context) (entries, balance int, err error)
	close func()
}

func openBooks(ctx context.Context, databaseURL string) (books, error) {
	if databaseURL == "" {
		return memoryBooks(), nil
	}
	db, err := pgxpool.New(ctx, databaseURL)
	if err != nil {
		return books{}, fmt.Errorf("DATABASE_URL: %w", err)
	}
	b, err := postgresBooks(ctx, db)
	if err != nil {
		db.Close()
		return books{}, fmt.Errorf("DATABASE_URL: %w", err)
	}
	return b, nil
}

func memoryBooks() books {
	var mu sync.Mutex
	var entries []message
	return books{
		store: new(idempotency.MemoryStore),
		add: func(_ context.Context, m message, halfway func()) error {
			mu.Lock()
			defer mu.Unlock()
			entries = append(entries, m)
			halfway()
			return nil
		},
		total: func(context.Context) (n, balance int, err error) {
			mu.Lock()
			defer mu.Unlock()
			for _, m := range entries {
				balance += m.Amount
			}
			return len(entries), balance, nil
		},
		close: func() {},
	}
}

// postgresBooks keeps entries and records in one database. An entry and the record of
// its message are one transaction (InTx): that makes it exactly once. No constraint on
// message_id helps, so an entry too many would show.
func postgresBooks(ctx context.Context, db *pgxpool.Pool) (books, error) {
	store, err := idempotency.NewPostgresStore(db, idempotency.PostgresConfig{})
	if err != nil {
		return books{}, err
	}
	if err := store.Migrate(ctx); err != nil {
		return books{}, err
	}
	_, err = db.Exec(ctx, `CREATE TABLE IF NOT EXISTS entries (message_id text NOT NULL, amount integer NOT NULL)`)
	return books{
		store: store,
		add: func(ctx context.Context, m message, halfway func()) error {
			return store.InTx(ctx, func(tx pgx.Tx) error {
				_, err := tx.Exec(ctx, `INSERT INTO entries VALUES ($1, $2)`, m.ID, m.Amount)
				halfway()
				return err
			})
		},
		total: func(ctx context.Context) (n, balance int, err error) {
			err = db.QueryRow(ctx, `SELECT count(*), coalesce(sum(amount), 0) FROM entries`).Scan(&n, &balance)
			return n, balance, err
		},
		close: db.Close,
	}, err
}
