package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency"
	"github.com/seed-2d1e5f61/idempotency/internal/pgproxy"
	"github.com/seed-2d1e5f61/idempotency/internal/testdb"
)

// txLedger is a business table beside the records: what a handler in InTx writes to.
type txLedger struct {
	store *idempotency.PostgresStore
	db    *pgxpool.Pool // past any proxy
	table string
}

// newLedger puts the store on databaseURL, which may lead through a proxy.
func newTxLedger(t *testing.T, databaseURL string) *txLedger {
	t.Helper()
	db := testdb.Pool(t)
	store, err := idempotency.NewPostgresStore(testdb.PoolAt(t, databaseURL), idempotency.PostgresConfig{Table: testdb.Table(t)})
	require.NoError(t, err)
	require.NoError(t, store.Migrate(t.Context()))
	l := &txLedger{store: store, db: db, table: testdb.Table(t)}
	_, err = db.Exec(t.Context(), "CREATE TABLE "+l.table+" (id text)")
	require.NoError(t, err)
	return l
}

func (l *txLedger) insert(ctx context.Context, tx pgx.Tx, id string) error {
	_, err := tx.Exec(ctx, "INSERT INTO "+l.table+" VALUES ($1)", id)
	return err
}

func (l *txLedger) count(t *testing.T) (n int) {
	t.Helper()
	require.NoError(t, l.db.QueryRow(t.Context(), "SELECT count(*) FROM "+l.table).Scan(&n))
	return n
}

// serve protects handler with the ledger's store, and returns what sends one request
// under the key k.
func (l *txLedger) serve(t *testing.T, cfg idempotency.Config, handler http.HandlerFunc) func() txAnswer {
	t.Helper()
	cfg.Tenant = idempotency.SingleTenant
	m, err := idempotency.New(l.store, cfg)
	require.NoError(t, err)
	server := httptest.NewServer(m.Handler(handler))
	t.Cleanup(server.Close)
	return func() txAnswer { return postCharge(t, server.URL) }
}

type txAnswer struct {
	status   int
	body     string
	replayed bool
}

func postCharge(t *testing.T, url string) txAnswer {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/charges", strings.NewReader("{}"))
	require.NoError(t, err)
	r.Header.Set("Idempotency-Key", "k")
	r.GetBody = nil // one request is one request: Go must not resend it
	resp, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return txAnswer{resp.StatusCode, string(body), resp.Header.Get("Idempotent-Replayed") == "true"}
}

func TestInTxCommitsEffectAndRecordTogether(t *testing.T) {
	t.Parallel()
	l := newTxLedger(t, testdb.URL(t))
	send := l.serve(t, idempotency.Config{}, func(w http.ResponseWriter, r *http.Request) {
		err := l.store.InTx(r.Context(), func(tx pgx.Tx) error {
			w.WriteHeader(http.StatusCreated)
			fmt.Fprint(w, "charged")
			return l.insert(r.Context(), tx, "c1")
		})
		if err != nil {
			t.Error(err)
		}
		// The outcome is final: none of this changes it.
		if _, err := io.WriteString(w, " twice"); err == nil {
			t.Error("a write after the commit was taken")
		}
		idempotency.FromContext(r.Context()).Release()
		idempotency.FromContext(r.Context()).KeepRef("ref")
		err = l.store.InTx(r.Context(), func(pgx.Tx) error {
			t.Error("a second transaction ran")
			return nil
		})
		if err == nil {
			t.Error("a second transaction was no error")
		}
	})
	require.Equal(t, txAnswer{201, "charged", false}, send())
	require.Equal(t, txAnswer{201, "charged", true}, send())
	require.Equal(t, 1, l.count(t))
}

func TestInTxOutlivesAPanicAfterIt(t *testing.T) {
	t.Parallel()
	l := newTxLedger(t, testdb.URL(t))
	m, err := idempotency.New(l.store, idempotency.Config{Tenant: idempotency.SingleTenant})
	require.NoError(t, err)
	handler := m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		require.NoError(t, l.store.InTx(r.Context(), func(tx pgx.Tx) error {
			w.WriteHeader(http.StatusCreated)
			return l.insert(r.Context(), tx, "c1")
		}))
		panic(http.ErrAbortHandler)
	}))
	request := func() *http.Request {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/charges", nil)
		r.Header.Set("Idempotency-Key", "k")
		return r
	}
	require.PanicsWithValue(t, http.ErrAbortHandler, func() { handler.ServeHTTP(httptest.NewRecorder(), request()) })
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, request())
	require.Equal(t, http.StatusCreated, w.Code)
	require.Equal(t, 1, l.count(t))
}

func TestInTxRollsBackAndTakesTheResponseBack(t *testing.T) {
	t.Parallel()
	errRefused := errors.New("refused")
	l := newTxLedger(t, testdb.URL(t))
	send := l.serve(t, idempotency.Config{}, func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Location", "/before")
		err := l.store.InTx(r.Context(), func(tx pgx.Tx) error {
			h.Set("Location", "/inside")
			w.WriteHeader(http.StatusCreated)
			fmt.Fprint(w, "charged")
			return errors.Join(l.insert(r.Context(), tx, "c1"), errRefused)
		})
		if !errors.Is(err, errRefused) {
			t.Errorf("InTx = %v", err)
		}
		w.WriteHeader(http.StatusPaymentRequired)
		fmt.Fprint(w, "not charged: "+h.Get("Location"))
	})
	require.Equal(t, txAnswer{402, "not charged: /before", false}, send())
	require.Equal(t, txAnswer{402, "not charged: /before", true}, send())
	require.Equal(t, 0, l.count(t))
}

func TestInTxMayBeTriedAgainAfterARollback(t *testing.T) {
	t.Parallel()
	l := newTxLedger(t, testdb.URL(t))
	send := l.serve(t, idempotency.Config{}, func(w http.ResponseWriter, r *http.Request) {
		for try := 1; ; try++ {
			err := l.store.InTx(r.Context(), func(tx pgx.Tx) error {
				fmt.Fprintf(w, "try %d", try)
				if err := l.insert(r.Context(), tx, "c1"); err != nil || try > 1 {
					return err
				}
				_, err := tx.Exec(r.Context(), "DO $$ BEGIN RAISE serialization_failure; END $$")
				return err
			})
			var pgErr *pgconn.PgError
			if !errors.As(err, &pgErr) || pgErr.Code != "40001" {
				break // 40001 reaches the caller as pgx gives it
			}
		}
	})
	require.Equal(t, txAnswer{200, "try 2", false}, send())
	require.Equal(t, 1, l.count(t))
}

func TestInTxRollsBackWhenItsFunctionPanics(t *testing.T) {
	t.Parallel()
	l := newTxLedger(t, testdb.URL(t))
	send := l.serve(t, idempotency.Config{}, func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if recover() != "boom" {
				t.Error("the panic did not go on")
			}
			w.WriteHeader(http.StatusTeapot)
		}()
		_ = l.store.InTx(r.Context(), func(tx pgx.Tx) error {
			w.WriteHeader(http.StatusCreated)
			if err := l.insert(r.Context(), tx, "c1"); err != nil {
				t.Error(err)
			}
			panic("boom")
		})
	})
	require.Equal(t, txAnswer{418, "", false}, send())
	require.Equal(t, 0, l.count(t))
}

func TestInTxWithoutAResponseRollsBack(t *testing.T) {
	t.Parallel()
	l := newTxLedger(t, testdb.URL(t))
	send := l.serve(t, idempotency.Config{}, func(w http.ResponseWriter, r *http.Request) {
		err := l.store.InTx(r.Context(), func(tx pgx.Tx) error { return l.insert(r.Context(), tx, "c1") })
		if !errors.Is(err, idempotency.ErrNoResponse) {
			t.Errorf("InTx = %v", err)
		}
		w.WriteHeader(http.StatusInternalServerError)
	})
	require.Equal(t, txAnswer{500, "", false}, send())
	require.Equal(t, 0, l.count(t))
}

func TestInTxInsideInTxRunsNothing(t *testing.T) {
	t.Parallel()
	l := newTxLedger(t, testdb.URL(t))
	send := l.serve(t, idempotency.Config{}, func(w http.ResponseWriter, r *http.Request) {
		_ = l.store.InTx(r.Context(), func(tx pgx.Tx) error {
			fmt.Fprint(w, "ok")
			err := l.store.InTx(r.Context(), func(pgx.Tx) error { t.Error("ran"); return nil })
			if err == nil {
				t.Error("no error")
			}
			return l.insert(r.Context(), tx, "c1")
		})
	})
	require.Equal(t, txAnswer{200, "ok", false}, send())
	require.Equal(t, 1, l.count(t))
}

func TestInTxKeepsALongResponseBackUntilTheCommit(t *testing.T) {
	t.Parallel()
	l := newTxLedger(t, testdb.URL(t))
	long := strings.Repeat("x", 100)
	tries := 0
	send := l.serve(t, idempotency.Config{MaxResponseBytes: 10}, func(w http.ResponseWriter, r *http.Request) {
		tries++
		for _, fail := range []bool{true, false} {
			_ = l.store.InTx(r.Context(), func(tx pgx.Tx) error {
				io.WriteString(w, long)
				if fail {
					return errors.New("once more")
				}
				return l.insert(r.Context(), tx, "c1")
			})
		}
	})
	require.Equal(t, txAnswer{200, long, false}, send())
	require.Equal(t, txAnswer{200, "", true}, send(), "omitted")
	require.Equal(t, 1, tries)
	require.Equal(t, 1, l.count(t))
}

func TestInTxFreesTheKeyOfAResponseThatIsNotKept(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		keep    func(int) bool
		release bool
	}{
		"Release": {nil, true},
		"Keep":    {func(status int) bool { return status < 500 }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newTxLedger(t, testdb.URL(t))
			send := l.serve(t, idempotency.Config{Keep: c.keep}, func(w http.ResponseWriter, r *http.Request) {
				err := l.store.InTx(r.Context(), func(tx pgx.Tx) error {
					if c.release {
						idempotency.FromContext(r.Context()).Release()
					}
					w.WriteHeader(http.StatusServiceUnavailable)
					return l.insert(r.Context(), tx, "note")
				})
				if err != nil {
					t.Error(err)
				}
			})
			require.Equal(t, txAnswer{503, "", false}, send())
			require.Equal(t, txAnswer{503, "", false}, send(), "the key was not freed")
			require.Equal(t, 2, l.count(t))
		})
	}
}

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

// storeTable finds the table of the ledger's store in its schema.
func (l *txLedger) storeTable(t *testing.T) string {
	t.Helper()
	_, rest, ok := strings.Cut(l.store.Schema(), `CREATE TABLE IF NOT EXISTS "`)
	require.True(t, ok)
	name, _, _ := strings.Cut(rest, `"`)
	return name
}

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

func TestInTxOutsideOfAnAttemptIsATransaction(t *testing.T) {
	t.Parallel()
	l := newTxLedger(t, testdb.URL(t))
	require.NoError(t, l.store.InTx(t.Context(), func(tx pgx.Tx) error { return l.insert(t.Context(), tx, "c1") }))
	errNo := errors.New("no")
	require.ErrorIs(t, l.store.InTx(t.Context(), func(tx pgx.Tx) error {
		return errors.Join(l.insert(t.Context(), tx, "c2"), errNo)
	}), errNo)
	require.Equal(t, 1, l.count(t))
}

func TestInTxInAConsumer(t *testing.T) {
	t.Parallel()
	l := newTxLedger(t, testdb.URL(t))
	c := &idempotency.Consumer{Store: l.store, Name: "ledger"}
	errLater := errors.New("after the commit")
	for i := range 2 {
		ran, err := c.Do(t.Context(), "m1", func(ctx context.Context) error {
			err := l.store.InTx(ctx, func(tx pgx.Tx) error { return l.insert(ctx, tx, "m1") })
			return errors.Join(err, errLater)
		})
		if i == 0 {
			require.ErrorIs(t, err, errLater)
			require.True(t, ran, "what is committed is done")
		} else {
			require.NoError(t, err)
			require.False(t, ran)
		}
	}
	require.Equal(t, 1, l.count(t))
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
