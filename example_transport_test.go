package idempotency_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"

	"github.com/seed-2d1e5f61/idempotency"
)

// startBank serves POST /charges behind the middleware. The first answers are lost on
// their way: the bank has charged and answered, and the client's connection breaks.
func startBank(lost int32) (url string, charges *atomic.Int32, stop func()) {
	charges = new(atomic.Int32)
	protect, err := idempotency.New(new(idempotency.MemoryStore), idempotency.Config{Tenant: idempotency.SingleTenant})
	if err != nil {
		panic(err)
	}
	bank := protect.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, "ch_%d", charges.Add(1))
	}))
	var answers atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if answers.Add(1) > lost {
			bank.ServeHTTP(w, r)
			return
		}
		bank.ServeHTTP(httptest.NewRecorder(), r)
		panic(http.ErrAbortHandler) // breaks the connection
	}))
	return server.URL + "/charges", charges, server.Close
}

func ExampleTransport() {
	url, charges, stop := startBank(2)
	defer stop()

	client := &http.Client{Transport: &idempotency.Transport{}}
	resp, err := client.Post(url, "application/json", nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	charge, _ := io.ReadAll(resp.Body)
	fmt.Printf("paid with %s\ncharges: %d\n", charge, charges.Load())
	// Output:
	// paid with ch_1
	// charges: 1
}

// The wrong way: a key made inside the retry loop is another one for each attempt. To
// the server these are three operations, and the customer pays three times.
func ExampleTransport_keyMadeInTheLoop() {
	url, charges, stop := startBank(2)
	defer stop()

	for range 4 {
		req, err := http.NewRequest(http.MethodPost, url, nil)
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
		fmt.Printf("paid with %s\ncharges: %d\n", charge, charges.Load())
		break
	}
	// Output:
	// paid with ch_3
	// charges: 3
}

// An order keeps its key where it keeps everything else. The process that made the key
// may die at any moment; whoever goes on with the order goes on under the same key.
func ExampleWithKey() {
	url, charges, stop := startBank(1)
	defer stop()

	order := struct{ ID, PaymentKey string }{"order-17", idempotency.NewKey()}
	// Here the order is written to the database, before the first request.

	pay := func() {
		client := &http.Client{Transport: &idempotency.Transport{MaxAttempts: 1}}
		ctx := idempotency.WithKey(context.Background(), order.PaymentKey)
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, nil)
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
	fmt.Println("charges:", charges.Load())
	// Output:
	// order-17: no answer
	// order-17: paid with ch_1
	// charges: 1
}
