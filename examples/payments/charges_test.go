package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency/internal/testdb"
)

func TestCreated(t *testing.T) {
	t.Parallel()
	inEachMode(t, func(t *testing.T, mode env) {
		p := start(t, mode)
		first := p.post("k1", card)
		require.Equal(t, 201, first.status, first.body)
		require.False(t, first.replayed())
		require.Equal(t, "application/json", first.header.Get("Content-Type"))

		var charge map[string]any
		require.NoError(t, json.Unmarshal([]byte(first.body), &charge))
		require.Regexp(t, `^ch_[0-9a-f]{32}$`, charge["id"])
		require.Equal(t, "/v1/charges/"+charge["id"].(string), first.header.Get("Location"))
		require.EqualValues(t, 1200, charge["amount"])
		require.Equal(t, "jpy", charge["currency"])
		require.Equal(t, "succeeded", charge["status"])
		require.Greater(t, charge["created"], 1.7e9, "in Unix seconds")

		second := p.post("k1", card)
		require.True(t, second.replayed())
		require.Equal(t, first.status, second.status)
		require.Equal(t, first.body, second.body)
		require.Equal(t, first.header.Get("Location"), second.header.Get("Location"))
		require.Equal(t, first.header.Get("Content-Type"), second.header.Get("Content-Type"))

		require.Equal(t, []string{charge["id"].(string)}, p.charges())
		one := p.do(request{method: "GET", path: first.header.Get("Location")})
		require.Equal(t, 200, one.status)
		require.Equal(t, first.body, one.body)
	})
}

// An answer that is recorded meets the retry; after the others the key is free.
func TestAnswersToCharges(t *testing.T) {
	t.Parallel()
	with := func(old, new string) string { return strings.Replace(card, old, new, 1) }
	tests := []struct {
		name     string
		body     string
		status   int
		code     string
		recorded bool
	}{
		{"declined", with("tok_visa", "tok_declined"), 402, "card_declined", true},
		{"timeout", with("tok_visa", "tok_timeout"), 500, "card_network_timeout", true},
		{"zero", with("1200", "0"), 400, "charge_invalid", false},
		{"negative", with("1200", "-1"), 400, "charge_invalid", false},
		{"fraction", with("1200", "1.5"), 400, "charge_invalid", false},
		{"text", with("1200", `"1200"`), 400, "charge_invalid", false},
		{"too large", with("1200", "9223372036854775808"), 400, "charge_invalid", false},
		{"no amount", `{"currency":"jpy","source":"tok_visa"}`, 400, "charge_invalid", false},
		{"unknown currency", with("jpy", "xxx"), 400, "charge_invalid", false},
		{"no currency", with("jpy", ""), 400, "charge_invalid", false},
		{"no source", with("tok_visa", ""), 400, "charge_invalid", false},
		{"order with NUL", with("{", `{"order_id":"\u0000",`), 400, "charge_invalid", false},
		{"long order", with("{", `{"order_id":"`+strings.Repeat("1", 201)+`",`), 400, "charge_invalid", false},
		{"not JSON", `amount=1200`, 400, "charge_invalid", false},
		{"two documents", card + card, 400, "charge_invalid", false},
		{"empty", "", 400, "charge_invalid", false},
	}
	inEachMode(t, func(t *testing.T, mode env) {
		p := start(t, mode)
		for _, tt := range tests {
			t.Run(tt.name, func(t *testing.T) {
				key := strings.ReplaceAll(tt.name, " ", "-")
				for i := range 2 {
					a := p.post(key, tt.body)
					require.Equal(t, tt.status, a.status, a.body)
					require.Equal(t, tt.code, a.code())
					require.NotEmpty(t, a.field("detail"))
					require.Equal(t, "application/problem+json", a.header.Get("Content-Type"))
					require.Equal(t, i == 1 && tt.recorded, a.replayed())
				}
				corrected := p.post(key, with("1200", "77"))
				if tt.recorded {
					require.Equal(t, 422, corrected.status)
					require.Equal(t, "idempotency_key_reused", corrected.code())
				} else {
					require.Equal(t, 201, corrected.status, "the key is free")
				}
			})
		}
	})
}

func TestOrderIsChargedOnce(t *testing.T) {
	t.Parallel()
	const order = `{"amount":1200,"currency":"jpy","source":"tok_visa","order_id":"7"}`
	inEachMode(t, func(t *testing.T, mode env) {
		p := start(t, mode)
		require.Equal(t, 201, p.post("k1", order).status)
		for i := range 2 {
			a := p.post("k2", order)
			require.Equal(t, 409, a.status)
			require.Equal(t, "order_already_charged", a.code())
			require.Equal(t, i == 1, a.replayed())
		}
		bob := p.do(request{key: "k1", body: order, auth: "Bearer sk_test_bob"})
		require.Equal(t, 201, bob.status, "another tenant's order has its own number")
		require.Len(t, p.charges(), 1)
		if url := mode["DATABASE_URL"]; url != "" {
			require.Equal(t, 2, countRows(t, url, "card_network"), "the refused charge is refunded")
		}
	})
}

func countRows(t *testing.T, url, table string) (n int) {
	t.Helper()
	require.NoError(t, testdb.PoolAt(t, url).QueryRow(t.Context(), "SELECT count(*) FROM "+table).Scan(&n))
	return n
}

func TestOrderRacesAreChargedOnce(t *testing.T) {
	t.Parallel()
	const order = `{"amount":1200,"currency":"jpy","source":"tok_visa","order_id":"7"}`
	inEachMode(t, func(t *testing.T, mode env) {
		p := start(t, mode)
		statuses := p.together(20, func(i int) request { return request{key: fmt.Sprint("k", i), body: order} })
		require.Equal(t, map[int]int{201: 1, 409: 19}, statuses)
		require.Len(t, p.charges(), 1)
		if url := mode["DATABASE_URL"]; url != "" {
			require.Equal(t, 1, countRows(t, url, "card_network"))
		}
	})
}

func TestDuplicatesAreChargedOnce(t *testing.T) {
	t.Parallel()
	inEachMode(t, func(t *testing.T, mode env) {
		p := start(t, mode, env{"CARD_NETWORK_LATENCY": "100ms"})
		statuses := p.together(50, func(int) request { return request{key: "k1", body: card} })
		require.Equal(t, 50, statuses[201]+statuses[409], "%v", statuses)
		require.NotZero(t, statuses[201])
		require.Len(t, p.charges(), 1)
		require.True(t, p.post("k1", card).replayed())
	})
}

// together sends n requests at once and counts the statuses.
func (p *program) together(n int, r func(int) request) map[int]int {
	p.Helper()
	var (
		mu       sync.Mutex
		statuses = map[int]int{}
		wg       sync.WaitGroup
	)
	for i := range n {
		wg.Go(func() {
			a, err := p.try(p.Context(), http.DefaultClient, r(i))
			if err != nil {
				p.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			statuses[a.status]++
		})
	}
	wg.Wait()
	return statuses
}

func TestKeyErrors(t *testing.T) {
	t.Parallel()
	inEachMode(t, func(t *testing.T, mode env) {
		p := start(t, mode)
		a := p.post("", card)
		require.Equal(t, 400, a.status)
		require.Equal(t, "idempotency_key_missing", a.code())

		require.Equal(t, 201, p.post("k1", card).status)
		a = p.post("k1", strings.Replace(card, "1200", "1201", 1))
		require.Equal(t, 422, a.status)
		require.Equal(t, "idempotency_key_reused", a.code())
		require.True(t, p.post("k1", strings.ReplaceAll(card, ",", " , ")).replayed(),
			"the same JSON with other white space is the same request")
		require.Len(t, p.charges(), 1)
	})
}

func TestTenantsAreApart(t *testing.T) {
	t.Parallel()
	inEachMode(t, func(t *testing.T, mode env) {
		p := start(t, mode)
		alice := p.post("k1", card)
		bob := p.do(request{key: "k1", body: card, auth: "Bearer sk_test_bob"})
		require.Equal(t, 201, bob.status)
		require.False(t, bob.replayed(), "bob got alice's response")
		require.NotEqual(t, alice.field("id"), bob.field("id"))
		require.Equal(t, []string{alice.field("id")}, p.charges())

		a := p.do(request{method: "GET", path: bob.header.Get("Location")})
		require.Equal(t, 404, a.status)
		require.Equal(t, "charge_not_found", a.code())
	})
}

func TestReading(t *testing.T) {
	t.Parallel()
	inEachMode(t, func(t *testing.T, mode env) {
		p := start(t, mode)
		require.Empty(t, p.charges())
		for _, id := range []string{"ch_none", "%00", "%ff"} {
			a := p.do(request{method: "GET", path: "/v1/charges/" + id})
			require.Equal(t, 404, a.status, id)
			require.Equal(t, "charge_not_found", a.code())
		}
		a := p.do(request{method: "GET", path: "/healthz", auth: "none"})
		require.Equal(t, 200, a.status)
		require.Equal(t, "ok\n", a.body)
	})
}

func TestUnauthorized(t *testing.T) {
	t.Parallel()
	p := start(t)
	require.Equal(t, 201, p.post("k1", card).status)
	for _, auth := range []string{"none", "Bearer", "Bearer pk_test_alice", "Basic sk_test_alice", "sk_test_alice"} {
		for _, r := range []request{{key: "k1", body: card}, {method: "GET"}, {method: "GET", path: "/v1/charges/ch_1"}} {
			r.auth = auth
			a := p.do(r)
			require.Equal(t, 401, a.status, auth)
			require.Equal(t, "api_key_missing", a.code())
			require.Equal(t, "Bearer", a.header.Get("WWW-Authenticate"))
			require.False(t, a.replayed())
		}
	}
	require.True(t, p.do(request{key: "k1", body: card, auth: "bearer sk_test_alice"}).replayed(),
		"a scheme's case means nothing")
}

// The form is what Stripe's clients send.
func TestForm(t *testing.T) {
	t.Parallel()
	inEachMode(t, func(t *testing.T, mode env) {
		p := start(t, mode)
		form := func(key, body string) answer {
			return p.do(request{key: key, body: body, contentType: "application/x-www-form-urlencoded"})
		}
		const charge = "amount=1200&currency=usd&metadata[order_id]=7&source=tok_visa"
		first := form("k1", charge)
		require.Equal(t, 201, first.status, first.body)
		require.Equal(t, "charge", first.field("object"))
		require.Equal(t, "7", first.field("order_id"))
		require.Equal(t, "usd", first.field("currency"))
		require.True(t, form("k1", charge).replayed())
		require.Equal(t, "order_already_charged", form("k2", charge).code())

		for _, bad := range []string{"amount=x&currency=usd&source=tok_visa", "currency=usd&source=tok_visa", "amount=1;currency=usd", "amount=%zz"} {
			a := form("k3", bad)
			require.Equal(t, 400, a.status, bad)
			require.Equal(t, "charge_invalid", a.code())
		}
		require.Equal(t, 201, form("k3", "amount=1&currency=usd&source=tok_visa").status, "the key is free")
	})
}
