package idempotency

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
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

func TestPostgresErrorsThatNeedRepair(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]bool{
		"28P01": true, "28000": true, // password, role
		"3D000": true, "3F000": true, // database, schema
		"42P01": true, "42703": true, "42501": true, // table, column, privilege

		"42P05": false,                 // the pooler's doing
		"40001": false, "40P01": false, // serialization failure, deadlock
		"08006": false, "57P01": false, "57P03": false, // the connection broke, the server stops or starts
		"25006": false, "53300": false, // read-only while another one takes over, too many connections
		"55P03": false, "57014": false, // lock_timeout, statement_timeout
	} {
		err := failed("Reserve", &pgconn.PgError{Code: code})
		require.Equal(t, want, isPermanent(err), code)
		require.Equal(t, code == "42P01", strings.Contains(err.Error(), "was Migrate run?"), code)
		var pgErr *pgconn.PgError
		require.ErrorAs(t, err, &pgErr)
	}
	require.False(t, isPermanent(failed("Reserve", context.DeadlineExceeded)))
	require.True(t, isPermanent(failed("Reserve", errUnmade)))
	require.True(t, isPermanent(failed("Reserve", errUnstorable)))
}
