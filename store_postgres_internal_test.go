package idempotency

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency/internal/testdb"
)

// Whoever asks about a commit whose reply was lost may come before the server has
// worked it off: an answer from the row as it was would be a guess.
func TestPostgresCompletedWaitsForTheTransaction(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(pgx.Tx, context.Context) error{
		"commit": pgx.Tx.Commit, "rollback": pgx.Tx.Rollback,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, pool := newCostStore(t, func(cfg *pgxpool.Config) {
				cfg.ConnConfig.RuntimeParams["application_name"] = t.Name()
			})
			c := costClaim(0)
			costReserve(t, s, c, Acquired)
			tx := testdb.Begin(t, testdb.Pool(t))
			done, err := s.complete(t.Context(), tx, outcomeOf(c, costResponse()))
			require.NoError(t, err)
			require.True(t, done)

			type answer struct {
				done bool
				err  error
			}
			asked := make(chan answer, 1)
			go func() {
				done, err := s.completed(t.Context(), pool, c)
				asked <- answer{done, err}
			}()
			require.Eventually(t, func() bool {
				var waits bool
				err := tx.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity
					WHERE application_name = $1 AND wait_event_type = 'Lock')`, t.Name()).Scan(&waits)
				return err == nil && waits || len(asked) > 0
			}, time.Minute, 5*time.Millisecond)
			require.NoError(t, end(tx, t.Context()))
			require.Equal(t, answer{name == "commit", nil}, <-asked)
		})
	}
}
