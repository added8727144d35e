package idempotency_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency"
)

func TestTransportSendsTheWholeBodyEachTime(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	tests := []struct {
		name     string
		size     int
		length   int64 // Request.ContentLength
		getBody  bool
		attempts int
	}{
		{name: "GetBody", size: 100, length: 100, getBody: true, attempts: 3},
		{name: "GetBody, long", size: mib + 1, length: mib + 1, getBody: true, attempts: 3},
		{name: "kept, length unknown", size: 100, length: -1, attempts: 3},
		{name: "kept, length given", size: 100, length: 100, attempts: 3},
		{name: "kept, empty", size: 0, attempts: 3},
		{name: "kept, longest", size: mib, length: -1, attempts: 3},
		{name: "too long, length unknown", size: mib + 1, length: -1, attempts: 1},
		{name: "too long, length given", size: mib + 1, length: mib + 1, attempts: 1},
		{name: "far too long", size: 3 * mib, length: -1, attempts: 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			want := strings.Repeat("0123456789", tt.size/10+1)[:tt.size]
			body := &trackedBody{Reader: strings.NewReader(want)}
			req := post(t, t.Context(), body)
			req.ContentLength = tt.length
			if tt.getBody {
				req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(want)), nil }
			}
			base := &scriptedBase{answer: statuses(503, 503, 200)}
			resp, err := quick(base).RoundTrip(req)
			require.NoError(t, err)
			resp.Body.Close()
			require.Len(t, base.bodies, tt.attempts)
			for i, got := range base.bodies {
				assert.True(t, want == got, "attempt %d has %d bytes", i+1, len(got))
				sent := base.requests[i]
				assert.Equal(t, tt.length, sent.ContentLength)
				assert.Equal(t, tt.attempts > 1, sent.GetBody != nil, "GetBody, for resends by Base")
				assert.NotEmpty(t, sent.Header["Idempotency-Key"])
			}
			assert.Equal(t, 1, body.closes())
		})
	}
}

// A body of a known length over the bound is not read before Base asks for it.
func TestTransportStreamsALongBody(t *testing.T) {
	t.Parallel()
	req := post(t, t.Context(), iotest.ErrReader(errors.New("read ahead")))
	req.ContentLength = 1<<20 + 1
	var reached bool
	base := roundTripFunc(func(r *http.Request) (*http.Response, error) {
		reached = true
		return reply(200), r.Body.Close()
	})
	resp, err := quick(base).RoundTrip(req)
	require.NoError(t, err)
	resp.Body.Close()
	assert.True(t, reached)
}

type roundTripFunc func(*http.Request) (*http.Response, error)

func (f roundTripFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestTransportSendsNothingOfABodyItCannotRead(t *testing.T) {
	t.Parallel()
	broken := errors.New("disk failed")
	body := &trackedBody{Reader: io.MultiReader(strings.NewReader("half"), iotest.ErrReader(broken))}
	base := &scriptedBase{answer: statuses(200)}
	_, err := quick(base).RoundTrip(post(t, t.Context(), body))
	require.ErrorIs(t, err, broken)
	assert.Empty(t, base.requests)
	assert.Equal(t, 1, body.closes())
}

func TestTransportReadsAheadOnlyUntilTheContextEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		body, w := io.Pipe()
		base := &scriptedBase{answer: statuses(200)}
		done := make(chan error)
		go func() {
			_, err := quick(base).RoundTrip(post(t, ctx, body))
			done <- err
		}()
		synctest.Wait()
		gone := errors.New("user left")
		cancel(gone)
		assert.Equal(t, gone, <-done)
		assert.Empty(t, base.requests)
		_, err := w.Write([]byte("x"))
		assert.ErrorIs(t, err, io.ErrClosedPipe, "request body closed")
	})
}

// The response is worth more than the error of a retry that never left.
func TestTransportReturnsTheOutcomeItHasWhenGetBodyFails(t *testing.T) {
	t.Parallel()
	req := post(t, t.Context(), strings.NewReader("x"))
	req.GetBody = func() (io.ReadCloser, error) { return nil, errors.New("file removed") }
	base := &scriptedBase{answer: statuses(503)}
	resp, err := quick(base).RoundTrip(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	assert.Equal(t, 503, resp.StatusCode)
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	assert.Equal(t, "Service Unavailable", string(text))
}

func TestTransportDoesNotChangeTheRequest(t *testing.T) {
	t.Parallel()
	for _, rewindable := range []bool{true, false} {
		var body io.Reader = &trackedBody{Reader: strings.NewReader("x")}
		if rewindable {
			body = bytes.NewReader([]byte("x"))
		}
		req := post(t, idempotency.WithKey(t.Context(), "k"), body)
		req.Header.Add("X-Line", "1")
		before, bodyBefore := req.Clone(t.Context()), req.Body

		// A Base that breaks the contract shows whether attempts share a header.
		var lines []int
		base := roundTripFunc(func(r *http.Request) (*http.Response, error) {
			r.Header.Add("X-Line", "2")
			r.URL.Path += "/more"
			lines = append(lines, len(r.Header["X-Line"]))
			assert.Equal(t, "/charges/more", r.URL.Path)
			_, err := io.Copy(io.Discard, r.Body)
			return reply(503), err
		})
		resp, err := quick(base).RoundTrip(req)
		require.NoError(t, err)
		resp.Body.Close()
		assert.Equal(t, []int{2, 2, 2, 2}, lines)
		assert.Equal(t, before.Header, req.Header)
		assert.Equal(t, before.URL, req.URL)
		assert.Equal(t, before.ContentLength, req.ContentLength)
		assert.True(t, bodyBefore == req.Body)
		assert.Equal(t, rewindable, req.GetBody != nil)
	}
}
