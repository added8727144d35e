package idempotency_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency"
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

// storeTable finds the table of the ledger's store in its schema.
func (l *txLedger) storeTable(t *testing.T) string {
	t.Helper()
	_, rest, ok := strings.Cut(l.store.Schema(), `CREATE TABLE IF NOT EXISTS "`)
	require.True(t, ok)
	name, _, _ := strings.Cut(rest, `"`)
	return name
}
