package tempdb_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/seed-2d1e5f61/idempotency/benchmarks/internal/tempdb"
	"github.com/seed-2d1e5f61/idempotency/internal/testdb"
)

func TestADatabaseIsLeftByNobody(t *testing.T) {
	url, drop, err := tempdb.Create(t.Context(), testdb.URL(t))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	if err := drop(); err != nil { // though somebody is connected
		t.Fatal(err)
	}
	conn.Close(t.Context())
	if conn, err := pgx.Connect(t.Context(), url); err == nil {
		conn.Close(t.Context())
		t.Error("the database is still there")
	}
}

func TestAURLIsNeeded(t *testing.T) {
	for _, url := range []string{"", "host=x", "mysql://x", "postgres://%"} {
		if _, _, err := tempdb.Create(t.Context(), url); err == nil {
			t.Errorf("%q: no error", url)
		}
	}
}
