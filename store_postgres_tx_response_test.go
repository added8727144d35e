package idempotency_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency"
	"github.com/seed-2d1e5f61/idempotency/internal/testdb"
)

// The media type that the first client is told is in the record, as it is without InTx:
// what is around a replay, a compressing layer say, may leave nothing to guess it from.
func TestInTxRecordsTheGuessedContentType(t *testing.T) {
	t.Parallel()
	l := newTxLedger(t, testdb.URL(t))
	m, err := idempotency.New(l.store, idempotency.Config{Tenant: idempotency.SingleTenant})
	require.NoError(t, err)
	h := m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, fail := range []error{errors.New("once more"), nil} {
			body := "plain"
			if fail == nil {
				body = "<html>"
			}
			err := l.store.InTx(r.Context(), func(pgx.Tx) error {
				io.WriteString(w, body)
				return fail
			})
			if !errors.Is(err, fail) {
				t.Error(err)
			}
		}
	}))
	for range 2 {
		w := headerAlone{header: make(http.Header)}
		h.ServeHTTP(w, request("k", "{}"))
		require.Equal(t, "text/html; charset=utf-8", w.header.Get("Content-Type"))
	}
}

// headerAlone is a ResponseWriter that guesses nothing.
type headerAlone struct {
	http.ResponseWriter
	header http.Header
}

func (w headerAlone) Header() http.Header         { return w.header }
func (w headerAlone) WriteHeader(int)             {}
func (w headerAlone) Write(p []byte) (int, error) { return len(p), nil }

// A transaction that a goroutine of the handler's rolls back behind the handler's end
// takes nothing back: the response is recorded, and on its way.
func TestInTxThatOutlivesItsHandler(t *testing.T) {
	t.Parallel()
	l := newTxLedger(t, testdb.URL(t))
	m, err := idempotency.New(l.store, idempotency.Config{Tenant: idempotency.SingleTenant})
	require.NoError(t, err)
	written, sending, rolledBack := make(chan struct{}), make(chan struct{}), make(chan struct{})
	h := m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		go func() {
			defer close(rolledBack)
			_ = l.store.InTx(r.Context(), func(pgx.Tx) error {
				w.Header().Set("Location", "/charges/1")
				io.WriteString(w, "answer")
				close(written)
				<-sending
				return errors.New("too late")
			})
		}()
		<-written
	}))
	w := slowWriter{httptest.NewRecorder(), sending, rolledBack}
	h.ServeHTTP(w, request("k", "{}"))
	require.Equal(t, "answer", w.Body.String())
	replay := call(h, request("k", "{}"))
	require.Equal(t, "answer", replay.Body)
	require.Equal(t, "/charges/1", replay.Header.Get("Location"))
}

// slowWriter says when the response is being sent, and goes on when it may.
type slowWriter struct {
	*httptest.ResponseRecorder
	sending chan<- struct{}
	goOn    <-chan struct{}
}

func (w slowWriter) WriteHeader(status int) {
	close(w.sending)
	<-w.goOn
	w.ResponseRecorder.WriteHeader(status)
}
