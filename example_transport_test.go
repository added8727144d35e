package idempotency_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"

	"github.com/seed-2d1e5f61/idempotency"
)

// ledger is a payment service in small: it charges once for each key. Its first
// answers are lost, after the charge was made.
type ledger struct {
	mu      sync.Mutex
	lose    int
	charges map[string]string // by key
}

func (l *ledger) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := r.Header.Get("Idempotency-Key")
	if _, ok := l.charges[key]; !ok {
		l.charges[key] = fmt.Sprintf("ch_%d", len(l.charges)+1)
	}
	if l.lose > 0 {
		l.lose--
		panic(http.ErrAbortHandler) // closes the connection
	}
	io.WriteString(w, l.charges[key])
}

func ExampleTransport() {
	bank := &ledger{lose: 2, charges: make(map[string]string)}
	server := httptest.NewServer(bank)
	defer server.Close()

	client := &http.Client{Transport: &idempotency.Transport{}}
	resp, err := client.Post(server.URL, "application/json", nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	charge, _ := io.ReadAll(resp.Body)
	fmt.Printf("paid with %s\ncharges: %d\n", charge, len(bank.charges))
	// Output:
	// paid with ch_1
	// charges: 1
}

// The wrong way: a key made inside the retry loop is another one for each attempt. To
// the server these are three operations, and the customer pays three times.
func ExampleTransport_keyMadeInTheLoop() {
	bank := &ledger{lose: 2, charges: make(map[string]string)}
	server := httptest.NewServer(bank)
	defer server.Close()

	for range 4 {
		req, err := http.NewRequest(http.MethodPost, server.URL, nil)
		if err != nil {
			fmt.Println(err)
			return
		}
		req.Header.Set("Idempotency-Key", idempotency.NewKey()) // belongs in front of the loop
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			continue // the answer is lost, the money is not
		}
		charge, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		fmt.Printf("paid with %s\ncharges: %d\n", charge, len(bank.charges))
		break
	}
	// Output:
	// paid with ch_3
	// charges: 3
}

// An order keeps its key where it keeps everything else. The process that made the key
// may die at any moment; whoever goes on with the order goes on under the same key.
func ExampleWithKey() {
	bank := &ledger{lose: 1, charges: make(map[string]string)}
	server := httptest.NewServer(bank)
	defer server.Close()

	order := struct{ ID, PaymentKey string }{"order-17", idempotency.NewKey()}
	// Here the order is written to the database, before the first request.

	pay := func() {
		client := &http.Client{Transport: &idempotency.Transport{MaxAttempts: 1}}
		ctx := idempotency.WithKey(context.Background(), order.PaymentKey)
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL, nil)
		if err != nil {
			fmt.Println(err)
			return
		}
		resp, err := client.Do(req)
		if err != nil {
			fmt.Printf("%s: no answer\n", order.ID)
			return
		}
		defer resp.Body.Close()
		charge, _ := io.ReadAll(resp.Body)
		fmt.Printf("%s: paid with %s\n", order.ID, charge)
	}
	pay()
	pay() // after a restart
	fmt.Println("charges:", len(bank.charges))
	// Output:
	// order-17: no answer
	// order-17: paid with ch_1
	// charges: 1
}
