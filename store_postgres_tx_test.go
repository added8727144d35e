package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency"
	"github.com/seed-2d1e5f61/idempotency/internal/testdb"
)

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

// A record behind a transaction that its function has ended would stand alone.
func TestInTxRecordsNothingOnceItsFunctionEndedTheTransaction(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(context.Context, pgx.Tx) error{
		"ROLLBACK":    func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Exec(ctx, "ROLLBACK"); return err },
		"COMMIT":      func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Exec(ctx, "COMMIT"); return err },
		"tx.Rollback": func(ctx context.Context, tx pgx.Tx) error { return tx.Rollback(ctx) },
		"tx.Commit":   func(ctx context.Context, tx pgx.Tx) error { return tx.Commit(ctx) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newTxLedger(t, testdb.URL(t))
			send := l.serve(t, idempotency.Config{}, func(w http.ResponseWriter, r *http.Request) {
				err := l.store.InTx(r.Context(), func(tx pgx.Tx) error {
					w.WriteHeader(http.StatusCreated)
					return errors.Join(l.insert(r.Context(), tx, "c1"), end(r.Context(), tx))
				})
				if !errors.Is(err, pgx.ErrTxClosed) {
					t.Errorf("InTx = %v", err)
				}
				w.WriteHeader(http.StatusInternalServerError)
			})
			require.Equal(t, txAnswer{status: 500}, send())
			require.Equal(t, txAnswer{status: 500, replayed: true}, send())
		})
	}
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
