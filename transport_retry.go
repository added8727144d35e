package idempotency

import (
	"cmp"
	"crypto/tls"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	defaultMaxAttempts = 4
	defaultMinBackoff  = 100 * time.Millisecond
	defaultMaxBackoff  = 10 * time.Second
	defaultRetryRatio  = 0.1

	// maxWait bounds what a server may ask of a caller who set no deadline.
	maxWait = time.Minute
)

// retryIn returns how long to wait before the next attempt, or false if the outcome of
// this one is to be returned.
func (t *Transport) retryIn(c *call, attempt int, resp *http.Response, err error) (time.Duration, bool) {
	ctx := c.req.Context()
	if attempt >= cmp.Or(t.MaxAttempts, defaultMaxAttempts) || ctx.Err() != nil || !c.repeatable() {
		return 0, false
	}
	if untrusted(err) || err == nil && !retryable(resp) {
		return 0, false
	}
	maxBackoff := cmp.Or(t.MaxBackoff, defaultMaxBackoff)
	wait := time.Duration(0)
	if err == nil {
		wait = retryAfter(resp.Header)
	}
	if wait <= 0 {
		wait = backoff(attempt, cmp.Or(t.MinBackoff, defaultMinBackoff), maxBackoff)
	}
	if deadline, ok := ctx.Deadline(); ok {
		if wait >= time.Until(deadline) {
			return 0, false
		}
	} else if wait > max(maxWait, maxBackoff) {
		return 0, false
	}
	return wait, t.budget.spend(t.RetryRatio)
}

// untrusted reports whether err is about the server's certificate: of the errors that a
// caller can tell apart, the one that would be there again.
func untrusted(err error) bool {
	var verification *tls.CertificateVerificationError
	return errors.As(err, &verification)
}

// retryable reports whether resp says that the same request may fare better later.
func retryable(resp *http.Response) bool {
	if replayed(resp.Header) {
		return false
	}
	switch resp.StatusCode {
	case http.StatusTooEarly, http.StatusTooManyRequests,
		http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	case http.StatusConflict:
		// Without Retry-After the conflict is one that waiting does not settle.
		return resp.Header.Get("Retry-After") != ""
	}
	return false
}

// replayed reports whether the server marked its answer as a recorded one.
func replayed(h http.Header) bool {
	return strings.EqualFold(h.Get(defaultReplayedHeader), "true") ||
		strings.EqualFold(h.Get("Idempotency-Replayed"), "true")
}

// retryAfter returns the wait that Retry-After asks for (RFC 9110, section 10.2.3). It
// is 0 or less if the field is missing, not understood, or names no time to come.
func retryAfter(h http.Header) time.Duration {
	value := strings.TrimSpace(h.Get("Retry-After"))
	seconds, err := strconv.ParseUint(value, 10, 64)
	if err == nil || errors.Is(err, strconv.ErrRange) {
		return time.Duration(min(seconds, uint64(math.MaxInt64/time.Second))) * time.Second
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	// The server's own clock, where it shows, says how far away its date is.
	now, err := http.ParseTime(h.Get("Date"))
	if err != nil {
		now = time.Now()
	}
	return at.Sub(now)
}

// backoff draws the wait behind the given attempt, counted from 1: full jitter, so
// that clients who failed together do not come back together.
func backoff(attempt int, lowest, highest time.Duration) time.Duration {
	ceiling := min(lowest, highest)
	for range attempt - 1 {
		if ceiling > highest/2 {
			ceiling = highest
			break
		}
		ceiling *= 2
	}
	return rand.N(max(ceiling, 1))
}

const (
	drainBytes = 64 << 10
	drainTime  = 100 * time.Millisecond
)

// discard gives up a response. Its body is read to the end, so that the connection
// can be used again, unless that takes more than a new connection would.
func discard(resp *http.Response) {
	if resp == nil || resp.Body == nil {
		return
	}
	// Close makes a blocked Read return.
	stalled := time.AfterFunc(drainTime, func() { resp.Body.Close() })
	io.CopyN(io.Discard, resp.Body, drainBytes)
	if stalled.Stop() {
		resp.Body.Close()
	}
}

// retryBudget is a token bucket. A request earns a part of a retry, a retry spends a
// whole one, and what can be saved up is a burst. It keeps the difference to a full
// bucket, so that the zero value is full, in integers, so that ten tenths are one.
type retryBudget struct {
	mu    sync.Mutex
	spent int64 // millionths of a retry
}

const (
	oneRetry   = 1_000_000
	retryBurst = 10 * oneRetry
)

func (b *retryBudget) earn(ratio float64) {
	if ratio < 0 {
		return
	}
	earned := min(cmp.Or(ratio, defaultRetryRatio)*oneRetry, retryBurst)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.spent = max(0, b.spent-int64(math.Round(earned)))
}

func (b *retryBudget) spend(ratio float64) bool {
	if ratio < 0 {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.spent+oneRetry > retryBurst {
		return false
	}
	b.spent += oneRetry
	return true
}
