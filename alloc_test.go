package idempotency_test

import (
	"bytes"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency"
)

// discard is a ResponseWriter that costs nothing.
type discard struct{ header http.Header }

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) Write(p []byte) (int, error) { return len(p), nil }
func (d *discard) WriteHeader(int)             {}

type rereadable struct{ bytes.Reader }

func (*rereadable) Close() error { return nil }

// allocsPerRequest serves POSTs with a JSON body of 200 bytes, each under the key that
// next gives, and returns the allocations of one.
func allocsPerRequest(handler http.Handler, next func() string) float64 {
	payload := []byte(`{"amount":1200,"currency":"jpy","note":"` + strings.Repeat("x", 158) + `"}`)
	body := new(rereadable)
	key := []string{""}
	r, _ := http.NewRequest(http.MethodPost, "/charges", nil)
	r.Header.Set("Content-Type", "application/json")
	r.Header["Idempotency-Key"] = key
	r.Body, r.ContentLength = body, int64(len(payload))
	w := &discard{make(http.Header)}
	return testing.AllocsPerRun(2000, func() {
		body.Reset(payload)
		key[0] = next()
		clear(w.header)
		handler.ServeHTTP(w, r)
	})
}

// withoutWork reads its request, and answers 200 bytes of JSON.
func withoutWork() http.Handler {
	response := []byte(`{"id":"` + strings.Repeat("y", 191) + `"}`)
	scratch := make([]byte, 1024)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for {
			if _, err := r.Body.Read(scratch); err == io.EOF {
				break
			}
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		w.Write(response)
	})
}

// What the middleware adds to a handler's own allocations, however many records there
// are. Not parallel: it counts them for the whole process.
func TestAllocations(t *testing.T) {
	store := new(idempotency.MemoryStore)
	m, err := idempotency.New(store, idempotency.Config{Tenant: idempotency.SingleTenant})
	require.NoError(t, err)
	bare := withoutWork()

	n := 0
	fresh := func() string { n++; return "key-" + strconv.Itoa(n) }
	overhead := func(next func() string) float64 {
		return allocsPerRequest(m.Handler(bare), next) - allocsPerRequest(bare, next)
	}
	for _, live := range []int{0, 100_000} {
		for n < live {
			claim := idempotency.Claim{Key: idempotency.Key{Tenant: "others", Value: fresh()}, Lease: time.Hour, TTL: time.Hour}
			_, err := store.Reserve(t.Context(), claim)
			require.NoError(t, err)
		}
		require.LessOrEqual(t, overhead(fresh), 8.0+raceAllocs, "fresh, beside %d live records", live)
		require.LessOrEqual(t, overhead(func() string { return "one" }), 3.0+raceAllocs, "replay, beside %d live records", live)
	}
}
