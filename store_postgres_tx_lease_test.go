package idempotency_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency"
	"github.com/seed-2d1e5f61/idempotency/internal/pgproxy"
	"github.com/seed-2d1e5f61/idempotency/internal/testdb"
)

func TestInTxOfAnAttemptThatLostItsClaim(t *testing.T) {
	t.Parallel()
	l := newTxLedger(t, testdb.URL(t))
	var outcome atomic.Value
	send := l.serve(t, idempotency.Config{Observe: func(_ context.Context, e idempotency.Event) { outcome.Store(e.Outcome) }},
		func(w http.ResponseWriter, r *http.Request) {
			// Somebody else takes the key over.
			_, err := l.db.Exec(r.Context(), "UPDATE "+l.storeTable(t)+" SET token = gen_random_uuid()")
			if err != nil {
				t.Error(err)
			}
			err = l.store.InTx(r.Context(), func(tx pgx.Tx) error {
				w.WriteHeader(http.StatusCreated)
				return l.insert(r.Context(), tx, "c1")
			})
			if !errors.Is(err, idempotency.ErrClaimLost) {
				t.Errorf("InTx = %v", err)
			}
			w.WriteHeader(http.StatusConflict)
		})
	require.Equal(t, txAnswer{409, "", false}, send())
	require.Equal(t, 0, l.count(t), "a stale owner's effect was committed")
	require.Eventually(t, func() bool { return outcome.Load() == idempotency.Unrecorded }, time.Minute, time.Millisecond)
}

// A commit that the server refuses leaves the attempt running, and so its lease is
// renewed again.
func TestInTxRenewsTheLeaseAfterARefusedCommit(t *testing.T) {
	t.Parallel()
	l := newTxLedger(t, testdb.URL(t))
	_, err := l.db.Exec(t.Context(), "ALTER TABLE "+l.table+" ADD UNIQUE (id) DEFERRABLE INITIALLY DEFERRED")
	require.NoError(t, err)
	leaseEnd := func(ctx context.Context) (end time.Time) {
		if err := l.db.QueryRow(ctx, "SELECT lease_until FROM "+l.storeTable(t)).Scan(&end); err != nil {
			t.Error(err)
		}
		return end
	}
	send := l.serve(t, idempotency.Config{Lease: time.Second}, func(w http.ResponseWriter, r *http.Request) {
		err := l.store.InTx(r.Context(), func(tx pgx.Tx) error {
			io.WriteString(w, "charged")
			return errors.Join(l.insert(r.Context(), tx, "c1"), l.insert(r.Context(), tx, "c1"))
		})
		var pgErr *pgconn.PgError
		if !errors.As(err, &pgErr) || pgErr.Code != "23505" {
			t.Errorf("InTx = %v", err)
		}
		before := leaseEnd(r.Context())
		for deadline := time.Now().Add(time.Minute); !leaseEnd(r.Context()).After(before); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Error("the lease is not renewed any more")
				return
			}
		}
	})
	require.Equal(t, txAnswer{200, "", false}, send())
	require.Equal(t, 0, l.count(t))
}

// A renewal that meets the commit would find the claim settled, and take it for lost.
func TestInTxDoesNotLoseItsClaimToItsOwnCommit(t *testing.T) {
	t.Parallel()
	const lease = 300 * time.Millisecond
	proxy := pgproxy.Start(t, testdb.URL(t))
	l := newTxLedger(t, proxy.URL())
	send := l.serve(t, idempotency.Config{Lease: lease}, func(w http.ResponseWriter, r *http.Request) {
		err := l.store.InTx(r.Context(), func(tx pgx.Tx) error {
			io.WriteString(w, "charged")
			return l.insert(r.Context(), tx, "c1")
		})
		if err != nil {
			t.Error(err)
		}
		select {
		case <-r.Context().Done():
			t.Errorf("the context ended: %v", context.Cause(r.Context()))
		case <-time.After(lease): // a renewal that was under way has its answer by now
		}
	})
	proxy.OnCommit(func() pgproxy.Fate {
		time.Sleep(lease) // a slow commit, in which renewals would come due
		return pgproxy.Pass
	})
	require.Equal(t, txAnswer{200, "charged", false}, send())
}
