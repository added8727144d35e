package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/seed-2d1e5f61/idempotency"
)

// charge is what the service answers.
type charge struct {
	ID       string `json:"id"`
	Amount   int64  `json:"amount"`
	Currency string `json:"currency"`
	Status   string `json:"status"`
	Created  int64  `json:"created"`
}

// pay charges the order under its key. Called again for the same order, in this
// process or another, it returns the same charge.
func pay(ctx context.Context, client *http.Client, o order, apiKey string) (*charge, error) {
	body, err := json.Marshal(map[string]any{"amount": o.Amount, "currency": o.Currency, "source": o.Source})
	if err != nil {
		return nil, err
	}
	ctx = idempotency.WithKey(ctx, o.Key)
	target := strings.TrimSuffix(o.URL, "/") + "/v1/charges"
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+apiKey)
	req.Header.Set("Content-Type", "application/json")

	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return nil, fmt.Errorf("the answer broke off: %w", err)
	}
	if resp.StatusCode != http.StatusCreated {
		return nil, refusal(resp.Status, answer)
	}
	c := new(charge)
	if err := json.Unmarshal(answer, c); err != nil || c.ID == "" {
		return nil, errors.New("the answer is not a charge")
	}
	return c, nil
}

// refusal says why the service did not charge: by its problem details (RFC 9457), if
// it sent any.
func refusal(status string, answer []byte) error {
	var problem struct{ Detail string }
	if err := json.Unmarshal(answer, &problem); err != nil || problem.Detail == "" {
		return fmt.Errorf("the service answers %s", status)
	}
	return fmt.Errorf("the service answers %s: %.200s", status, problem.Detail)
}
