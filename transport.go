package idempotency

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/seed-2d1e5f61/idempotency/internal/keysyntax"
)

// Transport gives each POST and PATCH a key and retries it under that key. Requests
// of other methods go to Base untouched. The zero value is ready. A Transport is safe
// for concurrent use; its fields must not change after its first use, and it must not
// be copied: it holds a retry budget.
//
//	client := &http.Client{Transport: &idempotency.Transport{}, Timeout: 30 * time.Second}
//
// It is for servers that honour the key. One that ignores it runs every retry.
//
// # The key
//
// The key is the one in the request's own header, else the one of [WithKey], else a
// new one, made once for each RoundTrip. The first two are for operations that must
// outlive the process: make the key with [NewKey] when the operation is decided, store
// it with the operation (a column of the order's row, a file flushed to disk) before
// the first request leaves, and keep it until the answer is stored as well. A restarted
// process sends the stored key again and finishes the same operation, as long as the
// server remembers the key. The key that was sent is in the header of Response.Request.
//
// Another retrier belongs inside of Transport, as its Base, where each of its attempts
// carries the same key. Around Transport it would call RoundTrip once for each attempt,
// and each would get a new key, so that the server takes the attempts for different
// operations. It may be around Transport only if the key is made outside of both: in
// the request's header, or with WithKey.
//
// # Retries
//
// Transport retries transport errors, the statuses 425, 429, 502, 503 and 504, and 409
// if it has a Retry-After, which says that the first request is still running. All
// other answers are final, and so is every answer that the server marks as replayed
// (Idempotent-Replayed or Idempotency-Replayed: true): sent again, the request would
// meet the same one. A body that breaks off after its header has arrived is the caller's
// to retry, under the same key.
//
// It waits for as long as Retry-After asks, in seconds or until a date, else for a
// random part of the backoff. It never waits past the deadline of the request's
// context; without a deadline it waits up to a minute, or MaxBackoff if that is longer.
// Rather than wait longer it returns what it has, as it does when the attempts or the
// budget are used up: the last response, its body unread, or the last error. If the
// context ends during a wait, its cause is the error.
//
// Transport sets no limit on one attempt. A Base with a ResponseHeaderTimeout makes a
// lost response a transport error that is retried; without one, the request waits for
// it until its context ends.
//
// # The body
//
// A retry takes the body from Request.GetBody, which http.NewRequest sets for the usual
// readers. A body without it is read ahead and kept if it is no longer than 1 MiB. A
// longer one is sent once and not retried.
type Transport struct {
	Base http.RoundTripper // nil: http.DefaultTransport

	// Header is the name of the key's header; "" is Idempotency-Key. Under that name and
	// X-Idempotency-Key net/http itself resends a request whose connection was dead.
	Header string

	// Quoted sends the key as a structured-field String (RFC 9651), for a server that
	// insists. A key in the request's own header is sent as it is.
	Quoted bool

	MaxAttempts int           // 0: 4. 1, or negative: no retries
	MinBackoff  time.Duration // 0: 100 ms; negative: no wait. The wait is drawn evenly from 0 to this, doubled with each retry
	MaxBackoff  time.Duration // 0: 10 s. Where doubling ends
	RetryRatio  float64       // 0: 0.1 retries a request in the long run, after a burst of 10; negative: no budget

	budget retryBudget
}

// RoundTrip implements [http.RoundTripper]. A key that cannot be sent, from WithKey or
// empty in the request's header, is ErrKeyInvalid and nothing is sent.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	base := t.base()
	if req.Method != http.MethodPost && req.Method != http.MethodPatch {
		return base.RoundTrip(req)
	}
	c, err := t.newCall(req)
	if err != nil {
		return nil, err
	}
	t.budget.earn(t.RetryRatio)
	next := c.attempt()
	for attempt := 1; ; attempt++ {
		resp, err := base.RoundTrip(next)
		wait, again := t.retryIn(c, attempt, resp, err)
		if !again {
			return resp, err
		}
		due := time.Now().Add(wait)
		// The next attempt exists before this outcome is given up.
		retry, rewindErr := c.retry()
		if rewindErr != nil {
			return resp, err
		}
		discard(resp)
		if ctx := req.Context(); pause(ctx, time.Until(due)) != nil {
			closeBody(retry)
			return nil, context.Cause(ctx)
		}
		next = retry
	}
}

// CloseIdleConnections closes the idle connections of Base, if Base can. It is what
// [http.Client.CloseIdleConnections] calls.
func (t *Transport) CloseIdleConnections() {
	if base, ok := t.base().(interface{ CloseIdleConnections() }); ok {
		base.CloseIdleConnections()
	}
}

func (t *Transport) base() http.RoundTripper {
	if t.Base == nil {
		return http.DefaultTransport
	}
	return t.Base
}

// call is one logical request: what every attempt at it is made from.
type call struct {
	req    *http.Request // the caller's, or a shallow copy of it with another body
	header string
	key    string // as sent; "" if req's own header has it
}

// newCall closes the body of req if it returns an error.
func (t *Transport) newCall(req *http.Request) (*call, error) {
	c := &call{header: cmp.Or(t.Header, defaultHeader)}
	var err error
	if c.key, err = t.keyFor(req, c.header); err != nil {
		closeBody(req)
		return nil, err
	}
	if c.req, err = readAhead(req); err != nil {
		return nil, err
	}
	return c, nil
}

// keyFor returns the header's value to send, or "" if the request has one.
func (t *Transport) keyFor(req *http.Request, header string) (string, error) {
	for name, values := range req.Header {
		// A name set without http.Header.Set may have any case. One without values is
		// not sent, so it holds no key.
		if len(values) == 0 || !strings.EqualFold(name, header) {
			continue
		}
		if strings.TrimSpace(values[0]) == "" {
			return "", fmt.Errorf("%w: empty in the request's header", ErrKeyInvalid)
		}
		return "", nil
	}
	key, ok := req.Context().Value(sentKey).(string)
	if !ok {
		key = NewKey()
	}
	return encodeKey(key, t.Quoted)
}

// encodeKey returns key as a header's value. Its errors do not contain the key.
func encodeKey(key string, quoted bool) (string, error) {
	if key == "" || len(key) > keysyntax.MaxLength {
		return "", fmt.Errorf("%w: must have 1 to %d bytes", ErrKeyInvalid, keysyntax.MaxLength)
	}
	if quoted {
		value, ok := keysyntax.Quote(key)
		if !ok {
			return "", fmt.Errorf("%w: must be printable ASCII", ErrKeyInvalid)
		}
		return value, nil
	}
	// A key that the server would read as another one is not sent either.
	if read, err := keysyntax.Parse(key, false); err != nil || read != key {
		return "", fmt.Errorf("%w: must be visible ASCII; space, quote and comma need Transport.Quoted", ErrKeyInvalid)
	}
	return key, nil
}

// attempt clones the request with its key. The name has to be canonical, or net/http
// does not take the request for one that it may resend on a dead connection.
func (c *call) attempt() *http.Request {
	r := c.req.Clone(c.req.Context())
	r.Trailer = c.req.Trailer // shared: whoever writes the body fills it in meanwhile
	if c.key == "" {
		return r
	}
	if r.Header == nil {
		r.Header = make(http.Header, 1)
	}
	r.Header.Set(c.header, c.key)
	return r
}

// retry is attempt with the body rewound.
func (c *call) retry() (*http.Request, error) {
	r := c.attempt()
	if !hasBody(r) {
		return r, nil
	}
	var err error
	r.Body, err = r.GetBody()
	return r, err
}

// repeatable reports whether the request can be sent more than once, and makes sense
// even once: without a host it fails before it leaves.
func (c *call) repeatable() bool {
	u := c.req.URL
	return u != nil && u.Scheme != "" && u.Host != "" && (!hasBody(c.req) || c.req.GetBody != nil)
}

// maxReadAhead is the longest body without GetBody that is kept for retries.
const maxReadAhead = 1 << 20

// readAhead returns req, or a shallow copy of it with the body kept for GetBody. A
// body that is too long is put together again and has no GetBody. The body is closed
// if readAhead returns an error.
func readAhead(req *http.Request) (*http.Request, error) {
	if !hasBody(req) || req.GetBody != nil || req.ContentLength > maxReadAhead {
		return req, nil
	}
	// A body may block for as long as it likes, the request only until its context ends.
	stop := context.AfterFunc(req.Context(), func() { req.Body.Close() })
	head, err := io.ReadAll(io.LimitReader(req.Body, maxReadAhead+1))
	if !stop() {
		return nil, context.Cause(req.Context())
	}
	if err != nil {
		req.Body.Close()
		return nil, fmt.Errorf("idempotency: reading the request's body: %w", err)
	}
	r := req.WithContext(req.Context())
	if len(head) > maxReadAhead {
		r.Body = struct {
			io.Reader
			io.Closer
		}{io.MultiReader(bytes.NewReader(head), req.Body), req.Body}
		return r, nil
	}
	req.Body.Close()
	r.GetBody = func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(head)), nil
	}
	r.Body, err = r.GetBody()
	return r, err
}

func hasBody(req *http.Request) bool {
	return req.Body != nil && req.Body != http.NoBody
}

func closeBody(req *http.Request) {
	if req.Body != nil {
		req.Body.Close()
	}
}
