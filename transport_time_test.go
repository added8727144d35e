package idempotency_test

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency"
)

// retryWaits returns how long tr waited before each retry. Time is synctest's, so
// the waits are exact.
func retryWaits(t *testing.T, tr *idempotency.Transport, ctx context.Context, answer func(n int) (*http.Response, error)) (waits []time.Duration, resp *http.Response, err error) {
	t.Helper()
	last := time.Now()
	tr.Base = &scriptedBase{answer: func(n int) (*http.Response, error) {
		if n > 1 {
			waits = append(waits, time.Since(last))
		}
		last = time.Now()
		return answer(n)
	}}
	resp, err = tr.RoundTrip(post(t, ctx, nil))
	return waits, resp, err
}

// onceThenOK answers the first request with resp and the others with 200.
func onceThenOK(resp *http.Response) func(int) (*http.Response, error) {
	return func(n int) (*http.Response, error) {
		if n == 1 {
			return resp, nil
		}
		return reply(200), nil
	}
}

func TestTransportObeysRetryAfter(t *testing.T) {
	t.Parallel()
	date := func(d time.Duration) string { return time.Now().Add(d).UTC().Format(http.TimeFormat) }
	tests := []struct {
		name       string
		retryAfter func() string
		date       func() string
		want       time.Duration
	}{
		{name: "seconds", retryAfter: func() string { return "3" }, want: 3 * time.Second},
		{name: "spaces", retryAfter: func() string { return " 3\t" }, want: 3 * time.Second},
		{name: "a minute", retryAfter: func() string { return "60" }, want: time.Minute},
		{name: "date", retryAfter: func() string { return date(5 * time.Second) }, want: 5 * time.Second},
		{name: "date by the server's clock, an hour ahead",
			retryAfter: func() string { return date(time.Hour + 7*time.Second) },
			date:       func() string { return date(time.Hour) }, want: 7 * time.Second},
		{name: "date by the server's clock, an hour behind",
			retryAfter: func() string { return date(-time.Hour + 7*time.Second) },
			date:       func() string { return date(-time.Hour) }, want: 7 * time.Second},
	}
	for _, tt := range tests {
		for _, status := range []int{409, 425, 429, 502, 503, 504} {
			synctest.Test(t, func(t *testing.T) {
				resp := reply(status, "Retry-After", tt.retryAfter())
				if tt.date != nil {
					resp.Header.Set("Date", tt.date())
				}
				waits, got, err := retryWaits(t, &idempotency.Transport{}, t.Context(), onceThenOK(resp))
				require.NoError(t, err)
				assert.Equal(t, 200, got.StatusCode)
				assert.Equal(t, []time.Duration{tt.want}, waits, "%s, %d", tt.name, status)
			})
		}
	}
}

func TestTransportBacksOffWhereRetryAfterSaysNothing(t *testing.T) {
	t.Parallel()
	for _, value := range []string{"0", "-1", "1.5", "+3", "0x10", "1_0", "soon", "", "Sat, 01 Jan 2000 00:00:00 GMT", "Fri, 31 Dec 1999 23:00:00 GMT"} {
		synctest.Test(t, func(t *testing.T) {
			resp := reply(503, "Retry-After", value)
			waits, got, err := retryWaits(t, &idempotency.Transport{}, t.Context(), onceThenOK(resp))
			require.NoError(t, err)
			assert.Equal(t, 200, got.StatusCode, "%q", value)
			require.Len(t, waits, 1, "%q", value)
			assert.Positive(t, waits[0], "%q", value)
			assert.Less(t, waits[0], 100*time.Millisecond, "%q", value)
		})
	}
}

func TestTransportReturnsTheResponseRatherThanWaitTooLong(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name       string
		tr         *idempotency.Transport
		deadline   time.Duration // 0: none
		retryAfter string
		waits      []time.Duration
	}{
		{name: "over a minute", retryAfter: "61"},
		{name: "enormous", retryAfter: "9223372036854775807"},
		{name: "more than a number holds", retryAfter: "99999999999999999999999"},
		{name: "far date", retryAfter: "Fri, 31 Dec 9999 23:59:59 GMT"},
		{name: "the caller waits longer by choice", tr: &idempotency.Transport{MaxBackoff: 5 * time.Minute}, retryAfter: "300", waits: []time.Duration{5 * time.Minute}},
		{name: "but not longer than that", tr: &idempotency.Transport{MaxBackoff: 5 * time.Minute}, retryAfter: "301"},
		{name: "a deadline allows more", deadline: time.Hour, retryAfter: "1800", waits: []time.Duration{30 * time.Minute}},
		{name: "before the deadline", deadline: 4 * time.Second, retryAfter: "3", waits: []time.Duration{3 * time.Second}},
		{name: "to the deadline", deadline: 3 * time.Second, retryAfter: "3"},
		{name: "past the deadline", deadline: 2 * time.Second, retryAfter: "3"},
		{name: "enormous, with a deadline", deadline: 2 * time.Second, retryAfter: "99999999999999999999999"},
	}
	for _, tt := range tests {
		synctest.Test(t, func(t *testing.T) {
			ctx := t.Context()
			if tt.deadline > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, tt.deadline)
				defer cancel()
			}
			if tt.tr == nil {
				tt.tr = &idempotency.Transport{}
			}
			start := time.Now()
			waits, resp, err := retryWaits(t, tt.tr, ctx, onceThenOK(reply(503, "Retry-After", tt.retryAfter)))
			require.NoError(t, err, tt.name)
			assert.Equal(t, tt.waits, waits, tt.name)
			if tt.waits != nil {
				assert.Equal(t, 200, resp.StatusCode, tt.name)
				return
			}
			assert.Zero(t, time.Since(start), "%s: returned at once", tt.name)
			assert.Equal(t, 503, resp.StatusCode, tt.name)
			text, err := io.ReadAll(resp.Body)
			require.NoError(t, err)
			assert.Equal(t, "Service Unavailable", string(text), tt.name)
		})
	}
}

func TestTransportReturnsTheErrorRatherThanWaitPastTheDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
		defer cancel()
		broken := errors.New("connection reset")
		tr := &idempotency.Transport{MinBackoff: time.Hour, MaxBackoff: time.Hour}
		waits, _, err := retryWaits(t, tr, ctx, func(int) (*http.Response, error) { return nil, broken })
		assert.Equal(t, broken, err)
		assert.Empty(t, waits)
	})
}

func TestTransportSeesTheClientsTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		base := &scriptedBase{answer: func(int) (*http.Response, error) { return reply(503, "Retry-After", "5"), nil }}
		client := &http.Client{Transport: &idempotency.Transport{Base: base}, Timeout: 11 * time.Second}
		start := time.Now()
		resp, err := client.Post(chargesURL, "text/plain", strings.NewReader("x"))
		require.NoError(t, err)
		resp.Body.Close()
		assert.Equal(t, 503, resp.StatusCode)
		assert.Len(t, base.requests, 3)
		assert.Equal(t, 10*time.Second, time.Since(start))
	})
}

func TestTransportStopsWaitingWhenTheContextEnds(t *testing.T) {
	t.Parallel()
	for _, cause := range []error{errors.New("user left"), nil} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(time.Second, func() { cancel(cause) })

			abandoned := &trackedBody{Reader: strings.NewReader("busy")}
			base := &scriptedBase{answer: func(int) (*http.Response, error) {
				resp := reply(503, "Retry-After", "3")
				resp.Body = abandoned
				return resp, nil
			}}
			var copies []*trackedBody
			req := post(t, ctx, strings.NewReader("x"))
			req.GetBody = func() (io.ReadCloser, error) {
				copies = append(copies, &trackedBody{Reader: strings.NewReader("x")})
				return copies[len(copies)-1], nil
			}
			start := time.Now()
			resp, err := (&idempotency.Transport{Base: base}).RoundTrip(req)
			assert.Equal(t, cmp.Or(cause, context.Canceled), err)
			assert.Nil(t, resp)
			assert.Equal(t, time.Second, time.Since(start))
			assert.Len(t, base.requests, 1)
			assert.Equal(t, 1, abandoned.closes(), "response body")
			require.Len(t, copies, 1)
			assert.Equal(t, 1, copies[0].closes(), "body of the retry that never left")
		})
	}
}

func TestTransportReturnsWhatItHasWhenTheContextHasEnded(t *testing.T) {
	t.Parallel()
	broken := errors.New("connection reset")
	for _, fail := range []error{nil, broken} {
		ctx, cancel := context.WithCancel(t.Context())
		base := &scriptedBase{answer: func(int) (*http.Response, error) {
			cancel()
			if fail != nil {
				return nil, fail
			}
			return reply(503), nil
		}}
		resp, err := quick(base).RoundTrip(post(t, ctx, nil))
		assert.Equal(t, fail, err)
		assert.Len(t, base.requests, 1)
		if fail == nil {
			assert.Equal(t, 503, resp.StatusCode)
			resp.Body.Close()
		}
	}
}

// stalledBody blocks in Read until it is closed.
type stalledBody struct{ closed chan struct{} }

func (b stalledBody) Read([]byte) (int, error) {
	<-b.closed
	return 0, errors.New("read of a closed body")
}

func (b stalledBody) Close() error {
	close(b.closed)
	return nil
}

func TestTransportDoesNotWaitForTheRestOfAnAbandonedResponse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		first := reply(503, "Retry-After", "2")
		first.Body = stalledBody{make(chan struct{})}
		waits, resp, err := retryWaits(t, &idempotency.Transport{}, t.Context(), onceThenOK(first))
		require.NoError(t, err)
		assert.Equal(t, 200, resp.StatusCode)
		assert.Equal(t, []time.Duration{2 * time.Second}, waits, "draining is part of the wait")

		first = reply(503)
		first.Body = stalledBody{make(chan struct{})}
		waits, _, err = retryWaits(t, quick(nil), t.Context(), onceThenOK(first))
		require.NoError(t, err)
		assert.Equal(t, []time.Duration{100 * time.Millisecond}, waits)
	})
}

func TestTransportBackoffIsFullJitter(t *testing.T) {
	t.Parallel()
	ms := time.Millisecond
	tests := []struct {
		name     string
		tr       *idempotency.Transport
		ceilings []time.Duration
	}{
		{"defaults", &idempotency.Transport{}, []time.Duration{100 * ms, 200 * ms, 400 * ms}},
		{"up to MaxBackoff", &idempotency.Transport{MinBackoff: time.Second, MaxBackoff: 5 * time.Second, MaxAttempts: 6},
			[]time.Duration{1000 * ms, 2000 * ms, 4000 * ms, 5000 * ms, 5000 * ms}},
		{"default MaxBackoff", &idempotency.Transport{MinBackoff: 6 * time.Second}, []time.Duration{6000 * ms, 10000 * ms, 10000 * ms}},
		{"MaxBackoff under MinBackoff", &idempotency.Transport{MinBackoff: time.Hour, MaxBackoff: time.Second}, []time.Duration{1000 * ms, 1000 * ms, 1000 * ms}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			const runs = 2000
			waits := make([][]time.Duration, len(tt.ceilings))
			tt.tr.RetryRatio = -1
			synctest.Test(t, func(t *testing.T) {
				for range runs {
					got, _, err := retryWaits(t, tt.tr, t.Context(), statuses(503))
					require.NoError(t, err)
					require.Len(t, got, len(tt.ceilings))
					for i, wait := range got {
						waits[i] = append(waits[i], wait)
					}
				}
			})
			for i, ceiling := range tt.ceilings {
				slices.Sort(waits[i])
				// With 2000 draws from 0 to 1, each of these fails once in 10^8 runs.
				fraction := func(n int) float64 { return float64(waits[i][n]) / float64(ceiling) }
				assert.Less(t, fraction(0), 0.01, "least wait %d", i+1)
				assert.InDelta(t, 0.5, fraction(runs/2), 0.07, "median of wait %d", i+1)
				assert.Greater(t, fraction(runs-1), 0.99, "greatest wait %d", i+1)
				assert.LessOrEqual(t, fraction(runs-1), 1.0, "greatest wait %d", i+1)
			}
		})
	}
}
