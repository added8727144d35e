// Package load makes requests to a handler within the process, so that what is measured
// is the handler and not the network.
package load

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/seed-2d1e5f61/idempotency"
)

// RequestBody and ResponseBody are 200 bytes of JSON each.
var (
	RequestBody  = []byte(`{"amount":1200,"currency":"jpy","note":"` + strings.Repeat("x", 158) + `"}`)
	ResponseBody = []byte(`{"id":"ch_1","amount":1200,"note":"` + strings.Repeat("y", 163) + `"}`)
)

// Status is what Handler answers.
const Status = http.StatusCreated

// Handler reads a request and answers it, and does nothing else.
var Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(Status)
	w.Write(ResponseBody)
})

// Slow is Handler after a while.
func Slow(d time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(d)
		Handler.ServeHTTP(w, r)
	})
}

var keys atomic.Uint64

// NewKey returns a key that this process has not used before, as long as a UUID.
func NewKey() string { return Key(keys.Add(1)) }

// Reserve takes n keys for its caller: Key of what it returns and of the next numbers.
func Reserve(n int) (first uint64) { return keys.Add(uint64(n)) - uint64(n) + 1 }

// Key returns the nth key of those that NewKey gives.
func Key(n uint64) string {
	var b [6]byte
	for i := range b {
		b[i] = byte(n >> (8 * (5 - i)))
	}
	key := []byte("3f7c2a51-9f2e-4d0b-8a77-000000000000")
	hex.Encode(key[24:], b[:])
	return string(key)
}

// Store returns a store whose table is there.
func Store(ctx context.Context, db idempotency.PostgresDB, cfg idempotency.PostgresConfig) (*idempotency.PostgresStore, error) {
	store, err := idempotency.NewPostgresStore(db, cfg)
	if err != nil {
		return nil, err
	}
	return store, store.Migrate(ctx)
}

// Middleware returns h, wrapped for one tenant.
func Middleware(store idempotency.Store, h http.Handler) (http.Handler, error) {
	m, err := idempotency.New(store, idempotency.Config{Tenant: idempotency.SingleTenant})
	if err != nil {
		return nil, err
	}
	return m.Handler(h), nil
}

// Client sends one POST after the other to a handler. It costs next to nothing itself,
// and is for one goroutine.
type Client struct {
	handler http.Handler
	request *http.Request
	body    rereadable
	key     []string
	writer  writer
}

// NewClient returns a client of h.
func NewClient(h http.Handler) *Client {
	c := &Client{handler: h, key: []string{""}}
	c.request, _ = http.NewRequest(http.MethodPost, "/charges", nil)
	c.request.Header.Set("Content-Type", "application/json")
	c.request.Header["Idempotency-Key"] = c.key
	c.request.Body, c.request.ContentLength = &c.body, int64(len(RequestBody))
	c.writer.header = make(http.Header)
	return c
}

// Post sends the request under key.
func (c *Client) Post(key string) (status int, replayed bool) {
	c.body.Reset(RequestBody)
	c.key[0] = key
	clear(c.writer.header)
	c.writer.status = http.StatusOK
	c.handler.ServeHTTP(&c.writer, c.request)
	return c.writer.status, c.writer.header["Idempotent-Replayed"] != nil
}

// Expect is Post that fails if the answer is not Handler's, or is a replay and should
// not be, or the other way round.
func (c *Client) Expect(key string, wantReplay bool) error {
	if status, replayed := c.Post(key); status != Status || replayed != wantReplay {
		return fmt.Errorf("answered %d, replayed %v; want %d, %v", status, replayed, Status, wantReplay)
	}
	return nil
}

type writer struct {
	header http.Header
	status int
}

func (w *writer) Header() http.Header         { return w.header }
func (w *writer) WriteHeader(status int)      { w.status = status }
func (w *writer) Write(p []byte) (int, error) { return len(p), nil }

type rereadable struct{ bytes.Reader }

func (*rereadable) Close() error { return nil }

var _ io.ReadCloser = (*rereadable)(nil)
