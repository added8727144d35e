package main

import (
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"time"

	"github.com/seed-2d1e5f61/idempotency"
	"github.com/seed-2d1e5f61/idempotency/examples/internal/charges"
)

// api holds what the handlers need.
type api struct {
	ledger  charges.Ledger
	network charges.Network
}

// createCharge runs behind the idempotency middleware: once for each key, and what it
// answers is what every retry gets. Two answers are not recorded, those after Release.
func (a *api) createCharge(w http.ResponseWriter, r *http.Request) {
	attempt := idempotency.FromContext(r.Context())

	order, err := readOrder(r)
	if err != nil {
		attempt.Release() // nothing has begun: the client may correct it under the same key
		writeProblem(w, http.StatusBadRequest, "charge_invalid", err.Error())
		return
	}
	charge := charges.Charge{
		ID:       charges.IDFor(attempt),
		Tenant:   tenantOf(r.Context()),
		Amount:   order.Amount,
		Currency: order.Currency,
		OrderID:  order.OrderID,
		Created:  time.Now(),
	}

	// The card network first: it is slow, and no transaction stays open meanwhile. Should
	// this process die behind it, the next attempt gets the same charge from it.
	charge, err = a.network.Charge(r.Context(), charge, order.Source)
	if err == nil {
		err = a.ledger.Add(r.Context(), charge, func() { writeCreated(w, charge) })
	}
	if errors.Is(err, charges.ErrOrderCharged) {
		if refundErr := a.network.Refund(r.Context(), charge.ID); refundErr != nil {
			err = refundErr
		}
	}
	if err != nil {
		writeChargeError(w, r, err)
	}
}

func writeCreated(w http.ResponseWriter, c charges.Charge) {
	resp := c.Response()
	maps.Copy(w.Header(), resp.Header)
	w.WriteHeader(resp.Status)
	w.Write(resp.Body)
}

func writeChargeError(w http.ResponseWriter, r *http.Request, err error) {
	switch {
	case errors.Is(err, charges.ErrDeclined):
		writeProblem(w, http.StatusPaymentRequired, "card_declined", "the card was declined")
	case errors.Is(err, charges.ErrNetworkTimeout):
		writeProblem(w, http.StatusInternalServerError, "card_network_timeout", "the card network gave no answer")
	case errors.Is(err, charges.ErrIDReused):
		idempotency.FromContext(r.Context()).Release() // it stays the other charge's
		writeProblem(w, http.StatusUnprocessableEntity, "charge_differs",
			"this key has been used for another charge")
	case errors.Is(err, charges.ErrOrderCharged):
		writeProblem(w, http.StatusConflict, "order_already_charged", "this order has been charged under another key")
	case errors.Is(err, idempotency.ErrUnavailable):
		// The commit's outcome is unknown, so this is no time to free the key. The
		// middleware answers 503, and the retry meets the truth.
	default:
		// Nothing is booked. The card network may have taken the money, but gives the
		// same charge to the retry, so the key can be freed for it.
		slog.ErrorContext(r.Context(), "charge failed", "err", err)
		idempotency.FromContext(r.Context()).Release()
		writeUnavailable(w)
	}
}

func (a *api) getCharge(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	charge, err := a.ledger.Find(r.Context(), tenantOf(r.Context()), id)
	switch {
	case err == nil:
		writeJSON(w, charge)
	case errors.Is(err, charges.ErrNotFound), !printable(id):
		writeProblem(w, http.StatusNotFound, "charge_not_found", "there is no such charge")
	default:
		slog.ErrorContext(r.Context(), "reading a charge failed", "err", err)
		writeUnavailable(w)
	}
}

func (a *api) listCharges(w http.ResponseWriter, r *http.Request) {
	list, err := a.ledger.List(r.Context(), tenantOf(r.Context()))
	if err != nil {
		slog.ErrorContext(r.Context(), "listing charges failed", "err", err)
		writeUnavailable(w)
		return
	}
	writeJSON(w, map[string]any{"object": "list", "data": list})
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(v)
}

func writeUnavailable(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "1")
	writeProblem(w, http.StatusServiceUnavailable, "ledger_unavailable", "try again with the same key")
}

// writeProblem answers with problem details (RFC 9457), as the middleware does.
func writeProblem(w http.ResponseWriter, status int, code, detail string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(map[string]any{
		"title":  http.StatusText(status),
		"status": status,
		"code":   code,
		"detail": detail,
	})
}
