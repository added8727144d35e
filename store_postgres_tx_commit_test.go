package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency"
	"github.com/seed-2d1e5f61/idempotency/internal/pgproxy"
	"github.com/seed-2d1e5f61/idempotency/internal/testdb"
)

// once is a fate for the first COMMIT; those after it pass.
func once(fate pgproxy.Fate) func() pgproxy.Fate {
	var first sync.Once
	return func() (next pgproxy.Fate) {
		first.Do(func() { next = fate })
		return next
	}
}

func TestInTxFindsOutWhatALostCommitDid(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fate    pgproxy.Fate
		want    txAnswer
		charges int
	}{
		"committed":     {pgproxy.LoseReply, txAnswer{201, "charged", false}, 1},
		"not committed": {pgproxy.LoseCommit, txAnswer{503, "try again", false}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			proxy := pgproxy.Start(t, testdb.URL(t))
			l := newTxLedger(t, proxy.URL())
			send := l.serve(t, idempotency.Config{}, func(w http.ResponseWriter, r *http.Request) {
				err := l.store.InTx(r.Context(), func(tx pgx.Tx) error {
					w.WriteHeader(http.StatusCreated)
					fmt.Fprint(w, "charged")
					return l.insert(r.Context(), tx, "c1")
				})
				if err != nil {
					idempotency.FromContext(r.Context()).Release()
					w.WriteHeader(http.StatusServiceUnavailable)
					fmt.Fprint(w, "try again")
				}
			})
			proxy.OnCommit(once(c.fate))
			require.Equal(t, c.want, send())
			require.Equal(t, c.charges, l.count(t))
			require.Equal(t, txAnswer{201, "charged", c.charges == 1}, send(), "the retry does not meet the truth")
			require.Equal(t, 1, l.count(t))
		})
	}
}

func TestInTxDoesNotGuessWhenTheDatabaseStaysAway(t *testing.T) {
	t.Parallel()
	for name, fate := range map[string]pgproxy.Fate{"committed": pgproxy.LoseReply, "not committed": pgproxy.LoseCommit} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			proxy := pgproxy.Start(t, testdb.URL(t))
			l := newTxLedger(t, proxy.URL())
			var last atomic.Value
			cfg := idempotency.Config{
				StoreTimeout: time.Second, Lease: time.Second, AfterCrash: idempotency.Rerun,
				Observe: func(_ context.Context, e idempotency.Event) { last.Store(e) },
			}
			send := l.serve(t, cfg, func(w http.ResponseWriter, r *http.Request) {
				err := l.store.InTx(r.Context(), func(tx pgx.Tx) error {
					fmt.Fprint(w, "charged")
					return l.insert(r.Context(), tx, "c1")
				})
				if err != nil {
					if !errors.Is(err, idempotency.ErrUnavailable) {
						t.Errorf("InTx = %v", err)
					}
					// A handler that knows no better must do no harm.
					idempotency.FromContext(r.Context()).Release()
					w.WriteHeader(http.StatusTeapot)
				}
			})
			proxy.OnCommit(func() pgproxy.Fate {
				proxy.SetAway(true)
				return fate
			})
			got := send()
			require.Equal(t, 503, got.status)
			require.Contains(t, got.body, "idempotency_unavailable")
			event := last.Load().(idempotency.Event)
			require.Equal(t, idempotency.Unrecorded, event.Outcome)
			require.Equal(t, 503, event.Status)
			require.ErrorIs(t, event.Err, idempotency.ErrUnavailable)

			proxy.OnCommit(nil)
			proxy.SetAway(false)
			require.Eventually(t, func() bool { got = send(); return got.status == 200 }, time.Minute, 10*time.Millisecond)
			require.Equal(t, txAnswer{200, "charged", fate == pgproxy.LoseReply}, got)
			require.Equal(t, 1, l.count(t))
		})
	}
}
