// Package charges is the business of the example programs: what a charge is, the card
// network that takes the money, and the ledger that books it.
package charges

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/seed-2d1e5f61/idempotency"
)

// Errors of a [Ledger] and a [Network] that are answers, not failures.
var (
	ErrDeclined       = errors.New("card declined")
	ErrNetworkTimeout = errors.New("card network timed out")
	ErrIDReused       = errors.New("the card network knows this id for another charge")
	ErrOrderCharged   = errors.New("order already charged")
	ErrNotFound       = errors.New("charge not found")
)

// Charge is money taken from a card for a tenant.
type Charge struct {
	ID       string // from IDFor
	Tenant   string
	Amount   int64 // in the currency's smallest unit
	Currency string
	OrderID  string // the tenant's own number, or "": an order is charged once
	Created  time.Time
}

// IDFor returns the id of the charge that the operation makes. It is derived from the
// idempotency key, so that every attempt asks the card network for the same charge, and
// whoever finds an interrupted attempt can look up what became of it.
func IDFor(operation interface{ Derive(name string) string }) string {
	return "ch_" + strings.ReplaceAll(operation.Derive("charge"), "-", "")
}

// MarshalJSON gives the charge as the API shows it, in the terms of Stripe's API.
func (c Charge) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		ID       string `json:"id"`
		Object   string `json:"object"`
		Amount   int64  `json:"amount"`
		Currency string `json:"currency"`
		Status   string `json:"status"`
		OrderID  string `json:"order_id,omitempty"`
		Created  int64  `json:"created"`
	}{c.ID, "charge", c.Amount, c.Currency, "succeeded", c.OrderID, c.Created.Unix()})
}

// Response is the answer to the request that made the charge. The handler sends it, and
// reconcile records it where the handler no longer could: both from here, so that the
// client cannot tell the difference.
func (c Charge) Response() idempotency.Response {
	body, _ := json.Marshal(c) // text and numbers: it cannot fail
	return idempotency.Response{
		Status: http.StatusCreated,
		Header: http.Header{
			"Content-Type": {"application/json"},
			"Location":     {"/v1/charges/" + c.ID},
		},
		Body: append(body, '\n'),
	}
}

// Ledger books charges. It is safe for concurrent use.
type Ledger interface {
	// Add books c and calls respond, which writes the response of the request that ctx
	// belongs to. In a database both are one transaction. Adding the same charge again
	// changes nothing. A second charge for an order is ErrOrderCharged.
	Add(ctx context.Context, c Charge, respond func()) error

	// Find returns a tenant's charge, or ErrNotFound.
	Find(ctx context.Context, tenant, id string) (Charge, error)

	// List returns all of a tenant's charges, the newest first.
	List(ctx context.Context, tenant string) ([]Charge, error)
}

// Network takes money from cards. It belongs to someone else, so no transaction of ours
// reaches it; in return it is idempotent by the charge's id. It is safe for concurrent
// use.
type Network interface {
	// Charge takes the money once, however often it is asked, and returns the charge as
	// it was first made. It fails with ErrDeclined, ErrNetworkTimeout and ErrIDReused;
	// after any other error nobody knows whether the money was taken.
	Charge(ctx context.Context, c Charge, source string) (Charge, error)

	// Refund gives the money back. Repeated, it does nothing.
	Refund(ctx context.Context, id string) error
}

// swipe is what all simulated networks do first: wait, and judge the card.
func swipe(ctx context.Context, latency time.Duration, source string) error {
	select {
	case <-time.After(latency):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	switch source {
	case "tok_declined":
		return ErrDeclined
	case "tok_timeout":
		return ErrNetworkTimeout
	}
	return nil
}

// sameMoney tells a repeated request for a charge from a different one under its id.
func sameMoney(a, b Charge) bool {
	return a.Amount == b.Amount && a.Currency == b.Currency && a.OrderID == b.OrderID
}
