package idempotency_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency"
	"github.com/seed-2d1e5f61/idempotency/internal/testdb"
)

// unprotected calls serve once for each reason to run without a claim, with what serves
// one request to a handler that does.
func unprotected(t *testing.T, test func(t *testing.T, l *txLedger, serve func(http.ResponseWriter, http.HandlerFunc))) {
	for name, cfg := range map[string]idempotency.Config{
		"no key":     {KeyOptional: true},
		"store down": {FailOpen: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newTxLedger(t, testdb.URL(t))
			cfg.Tenant = idempotency.SingleTenant
			m, err := idempotency.New(newFaultStore("Reserve", fullStore), cfg)
			require.NoError(t, err)
			test(t, l, func(w http.ResponseWriter, h http.HandlerFunc) {
				key := "k"
				if cfg.KeyOptional {
					key = ""
				}
				m.Handler(h).ServeHTTP(w, request(key, "{}"))
			})
		})
	}
}

// chargeInTx charges in a transaction that ends as end has it, and answers as the README
// shows.
func (l *txLedger) chargeInTx(end func(context.Context, pgx.Tx) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		err := l.store.InTx(r.Context(), func(tx pgx.Tx) error {
			w.Header().Set("Location", "/charges/c1")
			w.WriteHeader(http.StatusCreated)
			io.WriteString(w, "charged")
			w.Header().Set("Location", "too late")
			if err := http.NewResponseController(w).Flush(); err != nil {
				return err
			}
			return errors.Join(l.insert(r.Context(), tx, "c1"), end(r.Context(), tx))
		})
		if err != nil {
			idempotency.FromContext(r.Context()).Release()
			http.Error(w, "try again", http.StatusServiceUnavailable)
		}
	}
}

// A client without a key is not told of a success that was rolled back either.
func TestUnprotectedInTxTakesTheResponseBack(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(context.Context, pgx.Tx) error{
		"error": func(context.Context, pgx.Tx) error { return errors.New("no") },
		"commit refused": func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `CREATE TEMPORARY TABLE once (id int UNIQUE DEFERRABLE INITIALLY DEFERRED) ON COMMIT DROP`)
			if err == nil {
				_, err = tx.Exec(ctx, `INSERT INTO once VALUES (1), (1)`)
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			unprotected(t, func(t *testing.T, l *txLedger, serve func(http.ResponseWriter, http.HandlerFunc)) {
				w := httptest.NewRecorder()
				serve(w, l.chargeInTx(end))
				require.Equal(t, http.StatusServiceUnavailable, w.Code)
				require.Equal(t, "try again\n", w.Body.String())
				require.Empty(t, w.Header().Get("Location"))
				require.Equal(t, 0, l.count(t))
			})
		})
	}
}

func TestUnprotectedInTxSendsTheResponseOnceItIsCommitted(t *testing.T) {
	t.Parallel()
	unprotected(t, func(t *testing.T, l *txLedger, serve func(http.ResponseWriter, http.HandlerFunc)) {
		outer := httptest.NewRecorder()
		handler := l.chargeInTx(func(context.Context, pgx.Tx) error {
			if outer.Flushed || outer.Body.Len() > 0 {
				t.Error("a byte left before the commit")
			}
			return nil
		})
		serve(outer, func(w http.ResponseWriter, r *http.Request) {
			handler(w, r)
			io.WriteString(w, ", and more")
		})
		require.Equal(t, http.StatusCreated, outer.Code)
		require.Equal(t, "charged, and more", outer.Body.String())
		require.Equal(t, "/charges/c1", outer.Result().Header.Get("Location"))
		require.Equal(t, "too late", outer.Header().Get("Location"), "what is set behind the status stays: it may be a trailer")
		require.Equal(t, 1, l.count(t))
	})
}

func TestUnprotectedInTxThatPanicsSendsNothing(t *testing.T) {
	t.Parallel()
	unprotected(t, func(t *testing.T, l *txLedger, serve func(http.ResponseWriter, http.HandlerFunc)) {
		w := httptest.NewRecorder()
		serve(w, func(w http.ResponseWriter, r *http.Request) {
			defer func() { require.Equal(t, "boom", recover()) }()
			l.chargeInTx(func(context.Context, pgx.Tx) error { panic("boom") })(w, r)
		})
		require.Empty(t, w.Body.String())
		require.Empty(t, w.Header())
		require.Equal(t, 0, l.count(t))
	})
}

// Outside of a transaction nothing is kept back: such a handler may stream.
func TestUnprotectedHandlerWritesStraightOn(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil, func(c *idempotency.Config) { c.KeyOptional = true })
	w := httptest.NewRecorder()
	var late http.ResponseWriter
	f.Handler(http.HandlerFunc(func(inner http.ResponseWriter, _ *http.Request) {
		late = inner
		inner.WriteHeader(http.StatusAccepted)
		io.WriteString(inner, "one")
		require.Equal(t, http.StatusAccepted, w.Code)
		require.Equal(t, "one", w.Body.String())
		require.NoError(t, http.NewResponseController(inner).Flush())
		require.True(t, w.Flushed)
		require.ErrorIs(t, http.NewResponseController(inner).SetWriteDeadline(time.Time{}), errors.ErrUnsupported, "asked the writer outside")
		require.PanicsWithValue(t, "invalid WriteHeader code 0", func() { inner.WriteHeader(0) })
	})).ServeHTTP(w, request("", "{}"))

	_, err := io.WriteString(late, "two")
	require.Error(t, err, "a goroutine that outlives the handler")
	require.Error(t, http.NewResponseController(late).Flush())
	late.WriteHeader(http.StatusOK)
	require.Equal(t, "one", w.Body.String())
}
