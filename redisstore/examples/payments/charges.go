package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"sync"

	"github.com/google/uuid"

	"github.com/seed-2d1e5f61/idempotency"
)

// authenticated lets in who presents an API key: sk_ and anything.
func authenticated(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := tenant(r); err != nil {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, err.Error(), http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// tenant is a digest of the API key, so that the key itself is not kept in Redis.
func tenant(r *http.Request) (string, error) {
	apiKey, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok || !strings.HasPrefix(apiKey, "sk_") {
		return "", errors.New("an API key is needed")
	}
	sum := sha256.Sum256([]byte(apiKey))
	return hex.EncodeToString(sum[:16]), nil
}

type charge struct {
	ID       string `json:"id"`
	OrderID  string `json:"order_id"`
	Amount   int64  `json:"amount"`
	Currency string `json:"currency"`
}

// ledger stands for the table of a real service. Like that one it refuses a second
// charge for an order, whatever Redis has forgotten.
type ledger struct {
	mu      sync.Mutex
	charges map[[2]string]charge // by tenant and order
}

func newLedger() *ledger { return &ledger{charges: make(map[[2]string]charge)} }

// ServeHTTP makes a charge.
func (l *ledger) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var c charge
	if err := json.NewDecoder(r.Body).Decode(&c); err != nil || c.Amount < 1 || c.OrderID == "" || c.Currency == "" {
		idempotency.FromContext(r.Context()).Release() // nothing has begun: the key stays free
		http.Error(w, "order_id, currency and an amount of 1 or more are needed", http.StatusBadRequest)
		return
	}
	c.ID = "ch_" + uuid.NewString()
	who, err := tenant(r)
	if err != nil || !l.add(who, c) {
		http.Error(w, "the order is charged already", http.StatusConflict)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Location", "/v1/charges/"+c.ID)
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(c) // it goes into the record; the client's connection does not matter
}

func (l *ledger) add(tenant string, c charge) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	order := [2]string{tenant, c.OrderID}
	if _, charged := l.charges[order]; charged {
		return false
	}
	l.charges[order] = c
	return true
}
