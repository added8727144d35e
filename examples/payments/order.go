package main

import (
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
)

// order is what a client asks to be charged.
type order struct {
	Amount   int64  `json:"amount"`
	Currency string `json:"currency"`
	Source   string `json:"source"`
	OrderID  string `json:"order_id"`
}

// currencies are the ones this service takes, by their ISO 4217 codes.
var currencies = map[string]bool{
	"aud": true, "brl": true, "cad": true, "chf": true, "cny": true, "czk": true,
	"dkk": true, "eur": true, "gbp": true, "hkd": true, "huf": true, "idr": true,
	"ils": true, "inr": true, "jpy": true, "krw": true, "kwd": true, "mxn": true,
	"myr": true, "nok": true, "nzd": true, "php": true, "pln": true, "ron": true,
	"sek": true, "sgd": true, "thb": true, "try": true, "twd": true, "uah": true,
	"usd": true, "vnd": true, "zar": true,
}

// readOrder reads JSON, or a form in the way Stripe's clients write it. Its errors are
// meant for the client.
func readOrder(r *http.Request) (order, error) {
	var (
		o   order
		err error
	)
	mediaType, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if mediaType == "application/x-www-form-urlencoded" {
		o, err = orderFromForm(r)
	} else {
		o, err = orderFromJSON(r.Body)
	}
	if err != nil {
		return order{}, err
	}
	return o, o.check()
}

func orderFromJSON(body io.Reader) (o order, err error) {
	b, err := io.ReadAll(body)
	if err == nil {
		err = json.Unmarshal(b, &o)
	}
	if err != nil {
		return order{}, errors.New("the body must be JSON such as " +
			`{"amount":1200,"currency":"jpy","source":"tok_visa"}, the amount a whole number`)
	}
	return o, nil
}

func orderFromForm(r *http.Request) (order, error) {
	if err := r.ParseForm(); err != nil {
		return order{}, errors.New("the body must be a form such as amount=1200&currency=jpy&source=tok_visa")
	}
	amount, err := strconv.ParseInt(r.PostForm.Get("amount"), 10, 64)
	if err != nil {
		return order{}, errors.New("the amount must be a whole number")
	}
	return order{
		Amount:   amount,
		Currency: r.PostForm.Get("currency"),
		Source:   r.PostForm.Get("source"),
		OrderID:  r.PostForm.Get("metadata[order_id]"),
	}, nil
}

func (o order) check() error {
	switch {
	case o.Amount < 1:
		return errors.New("the amount must be 1 or more, in the currency's smallest unit")
	case !currencies[o.Currency]:
		return errors.New("the currency must be an ISO 4217 code in lower case that this service takes")
	case o.Source == "":
		return errors.New("the source must be a card's token, such as tok_visa")
	case len(o.OrderID) > 200 || !printable(o.OrderID):
		return errors.New("the order_id must be at most 200 printable ASCII characters")
	}
	return nil
}

// printable reports whether s is text that every database column can hold.
func printable(s string) bool {
	return !strings.ContainsFunc(s, func(c rune) bool { return c < ' ' || c > '~' })
}
