package idempotency_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-2d1e5f61/idempotency"
)

// dying is the store of a process that dies before its outcome is recorded.
type dying struct{ *idempotency.MemoryStore }

func (dying) Complete(context.Context, idempotency.Claim, idempotency.Response) error {
	return idempotency.ErrClaimLost
}

// How to test what a retry meets after a crash, without one.
func TestARetryAfterACrash(t *testing.T) {
	for policy, want := range map[idempotency.AfterCrash][]string{
		idempotency.Hold:  {"201 attempt 1", "409", "409"},
		idempotency.Rerun: {"201 attempt 1", "409", "201 attempt 2"},
	} {
		synctest.Test(t, func(t *testing.T) {
			store := new(idempotency.MemoryStore)
			sends := func(s idempotency.Store, want string) {
				t.Helper()
				if got := postUnder(t, s, policy); !strings.HasPrefix(got, want) {
					t.Errorf("policy %d: answered %q, want %q", policy, got, want)
				}
			}
			sends(dying{store}, want[0]) // runs, but the process dies with it
			sends(store, want[1])        // its lease is still live
			time.Sleep(30 * time.Second) // Config.Lease, by the bubble's clock
			sends(store, want[2])
		})
	}
}

// postUnder is a process on s that is sent the request once.
func postUnder(t *testing.T, s idempotency.Store, policy idempotency.AfterCrash) string {
	protect, err := idempotency.New(s, idempotency.Config{
		Tenant:     idempotency.SingleTenant,
		AfterCrash: policy,
		Logger:     slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	handler := protect.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusCreated)
		io.WriteString(w, "attempt "+strconv.Itoa(idempotency.FromContext(r.Context()).Number()))
	}))
	r := httptest.NewRequest("POST", "/charges", strings.NewReader(`{"amount":1200}`))
	r.Header.Set("Idempotency-Key", "k1")
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	return strconv.Itoa(w.Code) + " " + w.Body.String()
}
