package idempotency_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency"
)

// A store that NewPostgresStore has not made, perhaps because its error was ignored, has
// no database: every call says so, and none panics.
func TestPostgresStoreThatWasNotMade(t *testing.T) {
	t.Parallel()
	resp := created("x")
	for name, s := range map[string]*idempotency.PostgresStore{"nil": nil, "zero": {}} {
		c := pgClaim("k")
		for operation, call := range map[string]func(context.Context) error{
			"Reserve":  func(ctx context.Context) error { _, err := s.Reserve(ctx, c); return err },
			"Extend":   func(ctx context.Context) error { return s.Extend(ctx, c) },
			"Complete": func(ctx context.Context) error { return s.Complete(ctx, c, resp) },
			"Release":  func(ctx context.Context) error { return s.Release(ctx, c) },
			"Resolve":  func(ctx context.Context) error { return s.Resolve(ctx, c.Key, c.Token, &resp) },
			"Stuck":    func(ctx context.Context) error { _, err := s.Stuck(ctx, 1); return err },
			"Sweep":    func(ctx context.Context) error { _, err := s.Sweep(ctx, 1); return err },
			"Migrate":  func(ctx context.Context) error { return s.Migrate(ctx) },
			"InTx":     func(ctx context.Context) error { return s.InTx(ctx, func(pgx.Tx) error { return nil }) },
		} {
			require.EqualError(t, call(t.Context()),
				"idempotency: PostgresStore."+operation+": the store was not made by NewPostgresStore", name)
		}
	}
}
