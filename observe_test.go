package idempotency_test

import (
	"context"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency"
)

// secretKey may be somebody's e-mail address.
const secretKey = "jane.doe@example.com"

// outcomes is a way to each outcome. Its handler is h; prepare is done before the
// request that is looked at.
var outcomes = map[string]struct {
	config  func(*idempotency.Config)
	faults  map[string]fault
	prepare func(t *testing.T, f *fixture, h http.Handler)
	request func(r *http.Request)
	want    idempotency.Event
	is      error // what Err matches; nil: there is none
}{
	"executed": {want: idempotency.Event{Outcome: idempotency.Executed, Status: 201, Attempt: 1}},
	"executed, a declared failure": {
		request: func(r *http.Request) { r.Header.Set("Answer", "500") },
		want:    idempotency.Event{Outcome: idempotency.Executed, Status: 500, Attempt: 1},
	},
	"executed again": {
		config: func(c *idempotency.Config) { c.AfterCrash = idempotency.Rerun },
		prepare: func(t *testing.T, f *fixture, _ http.Handler) {
			reserveElsewhere(t, f.store, secretKey, "{}", time.Second, time.Hour)
			time.Sleep(time.Second)
		},
		want: idempotency.Event{Outcome: idempotency.Executed, Status: 201, Attempt: 2},
	},
	"released by the handler": {
		request: func(r *http.Request) { r.Header.Set("Answer", "release") },
		want:    idempotency.Event{Outcome: idempotency.Released, Status: 400, Attempt: 1},
	},
	"released by Keep": {
		config:  func(c *idempotency.Config) { c.Keep = func(status int) bool { return status < 500 } },
		request: func(r *http.Request) { r.Header.Set("Answer", "500") },
		want:    idempotency.Event{Outcome: idempotency.Released, Status: 500, Attempt: 1},
	},
	"replayed": {
		prepare: func(_ *testing.T, _ *fixture, h http.Handler) { call(h, request(secretKey, "{}")) },
		want:    idempotency.Event{Outcome: idempotency.Replayed, Status: 201, Attempt: 1},
	},
	"conflict": {
		prepare: func(t *testing.T, f *fixture, _ http.Handler) {
			reserveElsewhere(t, f.store, secretKey, "{}", time.Minute, time.Hour)
		},
		want: idempotency.Event{Outcome: idempotency.Conflict, Status: 409, Attempt: 1},
		is:   idempotency.ErrKeyInFlight,
	},
	"outcome unknown": {
		prepare: func(t *testing.T, f *fixture, _ http.Handler) {
			reserveElsewhere(t, f.store, secretKey, "{}", time.Second, time.Hour)
			time.Sleep(time.Second)
		},
		want: idempotency.Event{Outcome: idempotency.OutcomeUnknown, Status: 409, Attempt: 1},
		is:   idempotency.ErrOutcomeUnknown,
	},
	"mismatch": {
		prepare: func(_ *testing.T, _ *fixture, h http.Handler) { call(h, request(secretKey, "another")) },
		want:    idempotency.Event{Outcome: idempotency.Mismatch, Status: 422, Attempt: 1},
		is:      idempotency.ErrKeyReused,
	},
	"no key": {
		request: func(r *http.Request) { r.Header.Del("Idempotency-Key") },
		want:    idempotency.Event{Outcome: idempotency.Rejected, Status: 400, KeyHash: "-"},
		is:      idempotency.ErrKeyMissing,
	},
	"two keys": {
		request: func(r *http.Request) { r.Header.Add("Idempotency-Key", secretKey) },
		want:    idempotency.Event{Outcome: idempotency.Rejected, Status: 400, KeyHash: "-"},
		is:      idempotency.ErrKeyInvalid,
	},
	"bad key": {
		request: func(r *http.Request) { r.Header.Set("Idempotency-Key", `"`+secretKey) },
		want:    idempotency.Event{Outcome: idempotency.Rejected, Status: 400, KeyHash: "-"},
		is:      idempotency.ErrKeyInvalid,
	},
	"key refused by CheckKey": {
		config: func(c *idempotency.Config) {
			c.CheckKey = func(key string) error { return errors.New("refused: " + key) }
		},
		want: idempotency.Event{Outcome: idempotency.Rejected, Status: 400, KeyHash: "-"},
		is:   idempotency.ErrKeyInvalid,
	},
	"no tenant": {
		config: func(c *idempotency.Config) { c.Tenant = unknownTenant },
		want:   idempotency.Event{Outcome: idempotency.Rejected, Status: 403, KeyHash: "-", Tenant: "-", Endpoint: "-"},
		is:     idempotency.ErrTenantUnknown,
	},
	"body too large": {
		config: func(c *idempotency.Config) { c.MaxRequestBytes = 1 },
		want:   idempotency.Event{Outcome: idempotency.Rejected, Status: 413},
		is:     idempotency.ErrBodyTooLarge,
	},
	"body unreadable": {
		request: func(r *http.Request) { r.Body = io.NopCloser(failing{}) },
		want:    idempotency.Event{Outcome: idempotency.Rejected, Status: 400},
		is:      idempotency.ErrBodyRead,
	},
	"body read outside": {
		request: func(r *http.Request) { io.Copy(io.Discard, r.Body) },
		want:    idempotency.Event{Outcome: idempotency.Rejected, Status: 500},
		is:      idempotency.ErrBodyRead,
	},
	"fingerprint fails": {
		config: func(c *idempotency.Config) {
			c.Fingerprint = func(*http.Request, []byte) ([]byte, error) { return nil, io.ErrNoProgress }
		},
		want: idempotency.Event{Outcome: idempotency.Rejected, Status: 500},
		is:   io.ErrNoProgress,
	},
	"client gone": {
		request: leave,
		want:    idempotency.Event{Outcome: idempotency.Rejected},
		is:      context.Canceled,
	},
	"unavailable": {
		faults: map[string]fault{"Reserve": down},
		want:   idempotency.Event{Outcome: idempotency.Unavailable, Status: 503},
		is:     idempotency.ErrUnavailable,
	},
	"unprotected, no key": {
		config:  func(c *idempotency.Config) { c.KeyOptional = true },
		request: func(r *http.Request) { r.Header.Del("Idempotency-Key") },
		want:    idempotency.Event{Outcome: idempotency.Unprotected, KeyHash: "-"},
	},
	"unprotected, store down": {
		config: func(c *idempotency.Config) { c.FailOpen = true },
		faults: map[string]fault{"Reserve": down},
		want:   idempotency.Event{Outcome: idempotency.Unprotected},
		is:     errDown,
	},
	"unrecorded": {
		faults: map[string]fault{"Complete": down},
		want:   idempotency.Event{Outcome: idempotency.Unrecorded, Status: 201, Attempt: 1},
		is:     errDown,
	},
	"claim lost": {
		faults: map[string]fault{"Complete": takenOver},
		want:   idempotency.Event{Outcome: idempotency.Unrecorded, Status: 201, Attempt: 1},
		is:     idempotency.ErrClaimLost,
	},
}

func leave(r *http.Request) {
	ctx, cancel := context.WithCancel(r.Context())
	cancel()
	*r = *r.WithContext(ctx)
}

// answering answers as the request asks.
func answering(w http.ResponseWriter, r *http.Request) {
	switch r.Header.Get("Answer") {
	case "500":
		w.WriteHeader(http.StatusInternalServerError)
	case "release":
		idempotency.FromContext(r.Context()).Release()
		w.WriteHeader(http.StatusBadRequest)
	default:
		w.WriteHeader(http.StatusCreated)
	}
}

// Every path tells Observe its outcome, once and exactly, and no path tells anybody the
// key: neither events nor logs nor answers.
func TestEvents(t *testing.T) {
	hash := hex.EncodeToString(keyDigest("single", "POST /charges", secretKey))[:32]
	for name, test := range outcomes {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				store := newFaultStore("Reserve")
				type contextKey struct{}
				var got []idempotency.Event
				f := newFixture(t, store, func(c *idempotency.Config) {
					if test.config != nil {
						test.config(c)
					}
					c.Observe = func(ctx context.Context, e idempotency.Event) {
						require.Equal(t, "value", ctx.Value(contextKey{}), "the request's context")
						got = append(got, e)
					}
				})
				h := f.Handler(http.HandlerFunc(answering))
				withValue := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					h.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), contextKey{}, "value")))
				})
				if test.prepare != nil {
					test.prepare(t, f, withValue)
					got = nil
				}
				for op, fault := range test.faults {
					store.on(op, fault)
				}
				r := request(secretKey, "{}")
				if test.request != nil {
					test.request(r)
				}
				began := time.Now()
				a := call(withValue, r)
				took := time.Since(began)
				require.NoError(t, f.Drain(t.Context()))

				require.Len(t, got, 1)
				e := got[0]
				requireError(t, e.Err, test.is)
				want := test.want
				want.Duration, want.Err = took, e.Err
				want.Tenant, want.Endpoint, want.KeyHash = set(want.Tenant, "single"), set(want.Endpoint, "POST /charges"), set(want.KeyHash, hash)
				require.Equal(t, want, e)
				if e.Status != 0 {
					require.Equal(t, e.Status, a.Status)
				}
				require.NotContains(t, f.logs.String()+a.Body, secretKey)
				require.NotContains(t, f.logs.String()+a.Body, "jane")
			})
		})
	}
}

// set is value, unless the test says another or, with "-", none.
func set(said, value string) string {
	switch said {
	case "":
		return value
	case "-":
		return ""
	}
	return said
}

func requireError(t *testing.T, err, is error) {
	t.Helper()
	if is == nil {
		require.NoError(t, err)
		return
	}
	require.ErrorIs(t, err, is)
	require.NotContains(t, err.Error(), "jane")
}

// A waiter that left is a Conflict that nobody is left to be told.
func TestEventOfAWaiterThatLeft(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFixture(t, nil, func(c *idempotency.Config) { c.Wait = time.Minute })
		reserveElsewhere(t, f.store, "k", "{}", time.Hour, time.Hour)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		a := call(f.Handler(&charges{}), request("k", "{}").WithContext(ctx))
		requireProblem(t, a, http.StatusConflict, "idempotency_key_in_flight")
		e := f.event(t)
		require.Equal(t, idempotency.Conflict, e.Outcome)
		require.Zero(t, e.Status)
		require.Equal(t, time.Second, e.Duration)
	})
}

func TestEventOfAPanic(t *testing.T) {
	t.Parallel()
	for name, keep := range map[string]bool{"executed": true, "released": false} {
		f := newFixture(t, nil, func(c *idempotency.Config) { c.Keep = func(int) bool { return keep } })
		require.Panics(t, func() { call(f.Handler(http.HandlerFunc(panickyHandler)), request("k", "{}")) })
		e := f.event(t)
		require.Equal(t, idempotency.Outcome(name), e.Outcome)
		require.Equal(t, 500, e.Status)
		require.ErrorContains(t, e.Err, "panicked")
		require.NotContains(t, e.Err.Error(), "boom")
	}
}

// Without a Logger the default one is used, as it is at that moment.
func TestDefaultLogger(t *testing.T) {
	var logs logBuffer
	before := slog.Default()
	defer slog.SetDefault(before)
	synctest.Test(t, func(t *testing.T) {
		m, err := idempotency.New(newFaultStore("Reserve", down), idempotency.Config{Tenant: idempotency.SingleTenant})
		require.NoError(t, err)
		slog.SetDefault(slog.New(slog.NewJSONHandler(&logs, nil)))
		call(m.Handler(&charges{}), request(secretKey, "{}"))
		require.NoError(t, m.Drain(t.Context()))
	})
	require.Contains(t, logs.String(), "store unavailable")
	require.Contains(t, logs.String(), "key_hash")
	require.NotContains(t, logs.String(), "jane")
	require.Equal(t, 1, strings.Count(logs.String(), "\n"))
}
