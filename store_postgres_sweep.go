package idempotency

import (
	"context"
	"errors"
	"time"
)

// Sweep implements [Sweeper]. It skips rows that others have locked, so that it waits
// for nobody, and any number may sweep at once.
func (s *PostgresStore) Sweep(ctx context.Context, limit int) (int, error) {
	if s.unmade() {
		return 0, failed("Sweep", errUnmade)
	}
	if limit < 1 {
		return 0, failed("Sweep", errors.New("limit must be positive"))
	}
	// While an old snapshot is open somewhere, the index still leads to all that was
	// deleted before, so a batch starts at the expiry where the last one ended. What is
	// dead before that, it finds when there is nothing left behind it.
	from := s.sweepFrom.Swap(nil)
	deleted, err := s.sweep(ctx, from, limit)
	if err == nil && from != nil && deleted < limit {
		var more int
		more, err = s.sweep(ctx, nil, limit-deleted)
		deleted += more
	}
	if err != nil {
		return deleted, failed("Sweep", err)
	}
	return deleted, nil
}

// sweep deletes one batch and, if it was filled, leaves its end for the next.
func (s *PostgresStore) sweep(ctx context.Context, from *time.Time, limit int) (deleted int, err error) {
	var end *time.Time
	err = again(ctx, func() error {
		return s.db.QueryRow(ctx, s.sql.sweep, from, limit).Scan(&deleted, &end)
	})
	if err == nil && deleted == limit {
		s.sweepFrom.Store(end)
	}
	return deleted, err
}
