package idempotency_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency"
)

func TestTransportSendsOneKeyOverRetries(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		header http.Header
		ctxKey string
		tr     *idempotency.Transport
		want   http.Header // of every attempt
	}{
		{name: "caller's header", header: http.Header{"Idempotency-Key": {"own"}},
			want: http.Header{"Idempotency-Key": {"own"}}},
		{name: "WithKey", ctxKey: "ctx", want: http.Header{"Idempotency-Key": {"ctx"}}},
		{name: "header wins over WithKey", header: http.Header{"Idempotency-Key": {"own"}}, ctxKey: "ctx",
			want: http.Header{"Idempotency-Key": {"own"}}},
		{name: "name in another case", header: http.Header{"idempotency-key": {"own"}}, ctxKey: "ctx",
			want: http.Header{"idempotency-key": {"own"}}},
		{name: "header without values holds no key", header: http.Header{"Idempotency-Key": nil}, ctxKey: "ctx",
			want: http.Header{"Idempotency-Key": {"ctx"}}},
		{name: "another header", tr: &idempotency.Transport{Header: "x-request-token"}, ctxKey: "ctx",
			want: http.Header{"X-Request-Token": {"ctx"}}},
		{name: "quoted", tr: &idempotency.Transport{Quoted: true}, ctxKey: `a "b", \c`,
			want: http.Header{"Idempotency-Key": {`"a \"b\", \\c"`}}},
		{name: "quoted leaves the caller's header", tr: &idempotency.Transport{Quoted: true}, header: http.Header{"Idempotency-Key": {"own"}},
			want: http.Header{"Idempotency-Key": {"own"}}},
		{name: "longest", ctxKey: strings.Repeat("k", 255),
			want: http.Header{"Idempotency-Key": {strings.Repeat("k", 255)}}},
		{name: "longest, quoted", tr: &idempotency.Transport{Quoted: true}, ctxKey: strings.Repeat(`"`, 255),
			want: http.Header{"Idempotency-Key": {`"` + strings.Repeat(`\"`, 255) + `"`}}},
		{name: "every bare byte", ctxKey: "!#$%&'()*+-./09:;<=>?@AZ[\\]^_`az{|}~",
			want: http.Header{"Idempotency-Key": {"!#$%&'()*+-./09:;<=>?@AZ[\\]^_`az{|}~"}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			base := &scriptedBase{answer: statuses(503, 503, 201)}
			tr := tt.tr
			if tr == nil {
				tr = &idempotency.Transport{}
			}
			tr.Base, tr.MinBackoff = base, 1
			ctx := t.Context()
			if tt.ctxKey != "" {
				ctx = idempotency.WithKey(ctx, tt.ctxKey)
			}
			req := post(t, ctx, nil)
			maps.Copy(req.Header, tt.header)

			resp, err := tr.RoundTrip(req)
			require.NoError(t, err)
			defer resp.Body.Close()
			assert.Equal(t, 201, resp.StatusCode)
			require.Len(t, base.requests, 3)
			for _, r := range base.requests {
				assert.Equal(t, tt.want, r.Header)
			}
		})
	}
}

func TestTransportMakesAKeyForEachRequest(t *testing.T) {
	t.Parallel()
	for _, quoted := range []bool{false, true} {
		base := &scriptedBase{answer: statuses(502, 200, 504, 200)}
		tr := quick(base)
		tr.Quoted = quoted
		for range 2 {
			req := post(t, t.Context(), nil)
			req.Header = nil
			resp, err := tr.RoundTrip(req)
			require.NoError(t, err)
			resp.Body.Close()
		}
		keys := base.keys()
		require.Len(t, keys, 4)
		assert.Equal(t, keys[0], keys[1], "retry under another key")
		assert.Equal(t, keys[2], keys[3], "retry under another key")
		assert.NotEqual(t, keys[0], keys[2], "two operations under one key")
		for _, key := range keys {
			bare := strings.Trim(key, `"`)
			assert.Equal(t, quoted, key == `"`+bare+`"`, key)
			id, err := uuid.Parse(bare)
			require.NoError(t, err)
			assert.Equal(t, uuid.Version(4), id.Version())
		}
	}
}

func TestTransportRefusesAKeyItCannotSend(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("secrets!", 32) // 256 bytes
	bare := []string{"", long, "secret 1", "secret,1", `secret"1`, `"secret"`, "secret ", " secret"}
	both := []string{"", long, "secret\x00", "secret\n", "secret\t", "secret\x7f", "secret-\u00e9", "secret\xff"}
	for quoted, keys := range map[bool][]string{false: slices.Concat(bare, both), true: both} {
		for _, key := range keys {
			base := &scriptedBase{answer: statuses(200)}
			body := &trackedBody{Reader: strings.NewReader("x")}
			tr := &idempotency.Transport{Base: base, Quoted: quoted}
			_, err := tr.RoundTrip(post(t, idempotency.WithKey(t.Context(), key), body))
			require.ErrorIs(t, err, idempotency.ErrKeyInvalid, "%q", key)
			assert.NotContains(t, err.Error(), "secret")
			assert.Empty(t, base.requests, "%q was sent", key)
			assert.Equal(t, 1, body.closes(), "request body closed")
		}
	}
	t.Run("empty in the header", func(t *testing.T) {
		base := &scriptedBase{answer: statuses(200)}
		req := post(t, idempotency.WithKey(t.Context(), "ctx"), nil)
		req.Header.Set("Idempotency-Key", " ")
		_, err := quick(base).RoundTrip(req)
		require.ErrorIs(t, err, idempotency.ErrKeyInvalid)
		assert.Empty(t, base.requests)
	})
}

func TestTransportLeavesOtherMethodsAlone(t *testing.T) {
	t.Parallel()
	for _, method := range []string{"", "GET", "HEAD", "PUT", "DELETE", "OPTIONS", "TRACE", "post", "QUERY"} {
		base := &scriptedBase{answer: statuses(503)}
		req := post(t, idempotency.WithKey(t.Context(), "not even valid "), nil)
		req.Method = method
		resp, err := quick(base).RoundTrip(req)
		require.NoError(t, err)
		resp.Body.Close()
		require.Len(t, base.requests, 1, method)
		assert.Same(t, req, base.requests[0], method)
		assert.Empty(t, req.Header, method)
	}
	base := &scriptedBase{answer: statuses(503, 200)}
	req := post(t, t.Context(), nil)
	req.Method = http.MethodPatch
	resp, err := quick(base).RoundTrip(req)
	require.NoError(t, err)
	resp.Body.Close()
	assert.Len(t, base.requests, 2)
}

func TestTransportRetriesOnlyWhatMayChange(t *testing.T) {
	t.Parallel()
	retried := map[int]bool{425: true, 429: true, 502: true, 503: true, 504: true}
	final := func(t *testing.T, status int, fields ...string) bool {
		base := &scriptedBase{answer: func(n int) (*http.Response, error) {
			if n == 1 {
				return reply(status, fields...), nil
			}
			return reply(299), nil
		}}
		resp, err := quick(base).RoundTrip(post(t, t.Context(), nil))
		require.NoError(t, err)
		defer resp.Body.Close()
		return resp.StatusCode == status && len(base.requests) == 1
	}
	for status := 200; status < 600; status++ {
		if status == 299 {
			continue
		}
		assert.Equal(t, !retried[status], final(t, status), "%d", status)
		withRetryAfter := retried[status] || status == http.StatusConflict
		assert.Equal(t, !withRetryAfter, final(t, status, "Retry-After", "0"), "%d with Retry-After", status)
		assert.True(t, final(t, status, "Retry-After", "0", "Idempotent-Replayed", "true"), "%d replayed", status)
		assert.True(t, final(t, status, "Retry-After", "0", "Idempotency-Replayed", "True"), "%d replayed", status)
	}
	assert.False(t, final(t, 503, "Idempotent-Replayed", "false"))
}

func TestTransportRetriesErrors(t *testing.T) {
	t.Parallel()
	broken := errors.New("connection reset")
	base := &scriptedBase{answer: func(n int) (*http.Response, error) {
		if n < 4 {
			return nil, broken
		}
		return reply(201), nil
	}}
	resp, err := quick(base).RoundTrip(post(t, t.Context(), nil))
	require.NoError(t, err)
	resp.Body.Close()
	assert.Len(t, base.requests, 4)
	assert.Len(t, slices.Compact(base.keys()), 1)

	base = &scriptedBase{answer: func(int) (*http.Response, error) { return nil, broken }}
	_, err = quick(base).RoundTrip(post(t, t.Context(), nil))
	assert.Equal(t, broken, err, "the last error, as it is")
	assert.Len(t, base.requests, 4)
}

func TestTransportSendsOnceWhatRetriesCannotHelp(t *testing.T) {
	t.Parallel()
	once := func(t *testing.T, req *http.Request, err error) {
		base := &scriptedBase{answer: func(int) (*http.Response, error) { return nil, err }}
		_, got := quick(base).RoundTrip(req)
		assert.ErrorIs(t, got, err)
		assert.Len(t, base.requests, 1)
	}
	once(t, post(t, t.Context(), nil), &tls.CertificateVerificationError{Err: errors.New("expired")})

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	once(t, post(t, ctx, nil), context.Canceled)

	for _, url := range []string{"shop.example/charges", "//shop.example/charges", "http:///charges", "localhost:80/charges"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, nil)
		require.NoError(t, err)
		once(t, req, errors.New("no such host or scheme"))
	}
	req := post(t, t.Context(), nil)
	req.URL = nil
	once(t, req, errors.New("nil URL"))
}

func TestTransportMaxAttempts(t *testing.T) {
	t.Parallel()
	for set, want := range map[int]int{-1: 1, 0: 4, 1: 1, 2: 2, 7: 7} {
		base := &scriptedBase{answer: statuses(503)}
		tr := quick(base)
		tr.MaxAttempts = set
		resp, err := tr.RoundTrip(post(t, t.Context(), nil))
		require.NoError(t, err)
		resp.Body.Close()
		assert.Len(t, base.requests, want, "MaxAttempts %d", set)
	}
}

func TestTransportReturnsTheLastResponseAsItIs(t *testing.T) {
	t.Parallel()
	var bodies []*trackedBody
	base := &scriptedBase{answer: func(int) (*http.Response, error) {
		resp := reply(503, "X-Reason", "tired")
		body := &trackedBody{Reader: bytes.NewReader(make([]byte, 100<<10))}
		bodies, resp.Body = append(bodies, body), body
		return resp, nil
	}}
	resp, err := quick(base).RoundTrip(post(t, idempotency.WithKey(t.Context(), "order-1"), nil))
	require.NoError(t, err)
	require.Len(t, bodies, 4)
	for _, abandoned := range bodies[:3] {
		assert.Equal(t, 1, abandoned.closes())
		assert.Equal(t, 36<<10, abandoned.Reader.(*bytes.Reader).Len(), "left after draining 64 KB")
	}
	assert.Same(t, bodies[3], resp.Body)
	assert.Zero(t, bodies[3].closes())
	assert.Equal(t, 100<<10, bodies[3].Reader.(*bytes.Reader).Len())
	assert.Equal(t, "tired", resp.Header.Get("X-Reason"))
	assert.Equal(t, "order-1", resp.Request.Header.Get("Idempotency-Key"))
}

func TestTransportIsSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	base := &scriptedBase{answer: statuses(503)}
	tr := quick(base)
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			resp, err := tr.RoundTrip(post(t, t.Context(), strings.NewReader("x")))
			if assert.NoError(t, err) {
				resp.Body.Close()
			}
		})
	}
	wg.Wait()
	assert.LessOrEqual(t, len(base.requests), 50+10+5, "requests, burst, a tenth")
	assert.GreaterOrEqual(t, len(base.requests), 50+10)
}

type idleCloser struct {
	http.RoundTripper
	closed bool
}

func (c *idleCloser) CloseIdleConnections() { c.closed = true }

func TestTransportClosesIdleConnections(t *testing.T) {
	t.Parallel()
	base := &idleCloser{RoundTripper: &scriptedBase{}}
	(&http.Client{Transport: &idempotency.Transport{Base: base}}).CloseIdleConnections()
	assert.True(t, base.closed)
	(&http.Client{Transport: &idempotency.Transport{Base: &scriptedBase{}}}).CloseIdleConnections()
}
