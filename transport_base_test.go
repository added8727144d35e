package idempotency_test

import (
	"context"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency"
)

const chargesURL = "http://shop.example/charges"

// scriptedBase is a RoundTripper that reads each request whole, as a network would,
// and answers the nth one (from 1) with answer(n).
type scriptedBase struct {
	answer func(n int) (*http.Response, error)

	mu       sync.Mutex
	requests []*http.Request
	bodies   []string
}

func (b *scriptedBase) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
		if err := r.Body.Close(); err != nil {
			return nil, err
		}
	}
	b.mu.Lock()
	b.requests = append(b.requests, r)
	b.bodies = append(b.bodies, string(body))
	n := len(b.requests)
	b.mu.Unlock()
	resp, err := b.answer(n)
	if resp != nil {
		resp.Request = r
	}
	return resp, err
}

func (b *scriptedBase) keys() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var keys []string
	for _, r := range b.requests {
		keys = append(keys, r.Header.Get("Idempotency-Key"))
	}
	return keys
}

// reply makes a response; fields are header names and values in turn.
func reply(status int, fields ...string) *http.Response {
	h := make(http.Header)
	for field := range slices.Chunk(fields, 2) {
		h.Add(field[0], field[1])
	}
	return &http.Response{StatusCode: status, Header: h, Body: io.NopCloser(strings.NewReader(http.StatusText(status)))}
}

// statuses answers with each status in turn, and goes on with the last.
func statuses(list ...int) func(int) (*http.Response, error) {
	return func(n int) (*http.Response, error) {
		return reply(list[min(n, len(list))-1]), nil
	}
}

// quick is a Transport that does not wait between attempts.
func quick(base http.RoundTripper) *idempotency.Transport {
	return &idempotency.Transport{Base: base, MinBackoff: 1, MaxBackoff: 1}
}

func post(t *testing.T, ctx context.Context, body io.Reader) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, chargesURL, body)
	require.NoError(t, err)
	return req
}

// trackedBody counts how often it is closed, and has no GetBody.
type trackedBody struct {
	io.Reader
	mu     sync.Mutex
	closed int
}

func (b *trackedBody) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed++
	return nil
}

func (b *trackedBody) closes() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.closed
}
