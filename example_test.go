package idempotency_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed-2d1e5f61/idempotency"
)

// A handler is wrapped once, and a retry gets what the first request got.
func ExampleMiddleware() {
	protect, err := idempotency.New(new(idempotency.MemoryStore), idempotency.Config{
		Tenant: func(r *http.Request) (string, error) {
			return r.Header.Get("X-Account"), nil // set by what authenticates
		},
	})
	if err != nil {
		panic(err)
	}
	charges := 0
	handler := protect.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		charges++
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, "charge %d", charges)
	}))

	for range 2 {
		r := httptest.NewRequest("POST", "/charges", strings.NewReader(`{"amount":1200}`))
		r.Header.Set("X-Account", "acct_1")
		r.Header.Set("Idempotency-Key", `"8e03978e-40d5-43dd-bc93-6894a57f9324"`)
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		fmt.Println(w.Code, w.Body, "replayed:", w.Header().Get("Idempotent-Replayed") == "true")
	}
	// Output:
	// 201 charge 1 replayed: false
	// 201 charge 1 replayed: true
}

// A request that is refused before anything has begun leaves its key free, so that the
// client may correct it.
func ExampleAttempt_Release() {
	protect, err := idempotency.New(new(idempotency.MemoryStore), idempotency.Config{Tenant: idempotency.SingleTenant})
	if err != nil {
		panic(err)
	}
	handler := protect.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var order struct{ Amount int }
		if err := json.NewDecoder(r.Body).Decode(&order); err != nil || order.Amount < 1 {
			idempotency.FromContext(r.Context()).Release()
			http.Error(w, "amount must be at least 1", http.StatusBadRequest)
			return
		}
		w.WriteHeader(http.StatusCreated)
	}))
	for _, body := range []string{`{"amount":0}`, `{"amount":1200}`} {
		r := httptest.NewRequest("POST", "/charges", strings.NewReader(body))
		r.Header.Set("Idempotency-Key", "order-4711")
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		fmt.Println(w.Code)
	}
	// Output:
	// 400
	// 201
}

// A message that the broker delivers twice is run once.
func ExampleConsumer() {
	consumer := &idempotency.Consumer{Store: new(idempotency.MemoryStore), Name: "ledger"}
	for _, id := range []string{"m1", "m2", "m1"} {
		ran, err := consumer.Do(context.Background(), id, func(ctx context.Context) error {
			fmt.Println("booking", id)
			return nil
		})
		switch {
		case err != nil:
			fmt.Println(id, "is to be delivered again:", err)
		case !ran:
			fmt.Println(id, "was a duplicate")
		}
	}
	// Output:
	// booking m1
	// booking m2
	// m1 was a duplicate
}

// The charge and the record of its response are one transaction: a crash, or a lost
// reply to the commit, leaves both or neither.
func ExamplePostgresStore_InTx() {
	var store *idempotency.PostgresStore // from NewPostgresStore

	createCharge := func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		err := store.InTx(ctx, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `INSERT INTO charges (amount) VALUES ($1)`, 1200); err != nil {
				return err
			}
			w.WriteHeader(http.StatusCreated)
			return nil
		})
		switch {
		case errors.Is(err, idempotency.ErrUnavailable):
			// Nobody knows whether it was committed: the client is answered 503, and its
			// retry meets the truth.
		case err != nil:
			idempotency.FromContext(ctx).Release() // nothing happened
			http.Error(w, "try again with the same key", http.StatusServiceUnavailable)
		}
	}
	_ = http.HandlerFunc(createCharge)
}

// The way up and the way down of a service on PostgreSQL.
func ExampleNewPostgresStore() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		panic(err)
	}
	defer pool.Close() // last

	store, err := idempotency.NewPostgresStore(pool, idempotency.PostgresConfig{})
	if err != nil {
		panic(err)
	}
	if err := store.Migrate(ctx); err != nil {
		panic(err)
	}
	go idempotency.RunSweeper(ctx, store, time.Minute)

	protect, err := idempotency.New(store, idempotency.Config{
		Tenant:     idempotency.SingleTenant,
		AfterCrash: idempotency.Rerun, // all effects are in InTx
	})
	if err != nil {
		panic(err)
	}
	server := &http.Server{Addr: "127.0.0.1:8080", Handler: protect.Handler(http.NotFoundHandler())}
	go server.ListenAndServe()
	// ... until a signal comes; then
	_ = server.Shutdown(ctx)
	_ = protect.Drain(ctx)
}
