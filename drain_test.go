package idempotency_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency"
)

func TestDrainOfAnIdleMiddleware(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	require.NoError(t, f.Drain(t.Context()))
	call(f.Handler(&charges{}), request("k", "{}"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, f.Drain(ctx), "nothing is running")
}

// Shutdown does not wait for an HTTP/2 handler whose client has left. Drain does.
func TestDrainWaitsForAHandlerWhoseClientHasLeft(t *testing.T) {
	onEachProtocol(t, func(t *testing.T, listen listenFunc) {
		h, began, finish := occupied(&charges{})
		f := newFixture(t, nil)
		m := f.Handler(h)
		p := listen(m)
		ctx, leave := context.WithCancel(t.Context())
		left := make(chan error)
		go func() {
			_, err := p.do(p.request(t, "k", strings.NewReader("{}")).WithContext(ctx))
			left <- err
		}()
		closed(t, began)
		leave()
		require.Error(t, <-left)

		soon, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		require.ErrorIs(t, f.Drain(soon), context.DeadlineExceeded)

		drained := make(chan error, 2)
		for range 2 {
			go func() { drained <- f.Drain(t.Context()) }()
		}
		finish()
		require.NoError(t, <-drained)
		require.NoError(t, <-drained)
		require.True(t, call(m, request("k", "{}")).replayed(), "its outcome was not recorded before Drain returned")
		require.NoError(t, p.Config.Shutdown(t.Context()))
	})
}

// Whatever a request is at, a database that is closed after Drain is not missed.
func TestDrainWaitsForEveryStage(t *testing.T) {
	for name, op := range map[string]string{"reserving": "Reserve", "recording": "Complete", "releasing": "Release", "renewing": "Extend"} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				inside, release := make(chan struct{}), make(chan struct{})
				store := newFaultStore(op, func(_ context.Context, do func() error) error {
					close(inside)
					<-release
					return do()
				}, works)
				f := newFixture(t, store, func(c *idempotency.Config) { c.Keep = func(int) bool { return op != "Release" } })
				h := f.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
					if op == "Extend" {
						<-inside
					}
				}))
				done := make(chan answer, 1)
				go func() { done <- call(h, request("k", "{}")) }()
				<-inside
				synctest.Wait()
				drained := make(chan error)
				go func() { drained <- f.Drain(t.Context()) }()
				synctest.Wait()
				select {
				case <-drained:
					require.Fail(t, "drained too early")
				default:
				}
				close(release)
				require.NoError(t, <-drained)
				calls := len(store.called())
				<-done
				time.Sleep(time.Hour)
				require.Len(t, store.called(), calls, "the store was asked after Drain")
			})
		})
	}
}

// An early record that a goroutine of the handler's is about to write outlives the handler,
// which does not wait for it.
func TestDrainWaitsForAnEarlyRecord(t *testing.T) {
	bubble(t, func(t *testing.T) {
		inside, release := make(chan struct{}), make(chan struct{})
		store := newFaultStore("Complete", func(_ context.Context, do func() error) error {
			close(inside)
			<-release
			return do()
		}, works)
		f := newFixture(t, store, func(c *idempotency.Config) { c.MaxResponseBytes = 1 })
		h := f.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			go io.WriteString(w, "long")
			<-inside
		}))
		require.Equal(t, "long", call(h, request("k", "{}")).Body)
		soon, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := f.Drain(soon)
		close(release)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NoError(t, f.Drain(t.Context()))
	})
}

// The claim of a reserve that failed is freed in the background; Drain waits for that.
func TestDrainWaitsForAnAbandonedClaim(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newFaultStore("Reserve", replyLost)
		f := newFixture(t, store)
		call(f.Handler(&charges{}), request("k", "{}"))
		require.NoError(t, f.Drain(t.Context()))
		require.Len(t, store.called("Release"), 1)
	})
}

// An unprotected run is a run too.
func TestDrainWaitsForAnUnprotectedRun(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		store idempotency.Store
		key   string
	}{"no key": {nil, ""}, "fail open": {newFaultStore("Reserve", fullStore), "k"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, test.store, func(c *idempotency.Config) { c.KeyOptional, c.FailOpen = true, true })
			h, began, finish := occupied(&charges{})
			done := make(chan answer)
			go func() { done <- call(f.Handler(h), request(test.key, "{}")) }()
			closed(t, began)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			defer cancel()
			require.ErrorIs(t, f.Drain(ctx), context.DeadlineExceeded)
			finish()
			require.NoError(t, f.Drain(t.Context()))
			require.Equal(t, http.StatusCreated, (<-done).Status)
		})
	}
}

func TestDrainAfterPanics(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	h := f.Handler(http.HandlerFunc(panickyHandler))
	for range 3 {
		require.Panics(t, func() { call(h, request("k", "{}")) })
		require.NoError(t, f.Drain(t.Context()))
		require.Equal(t, http.StatusInternalServerError, call(h, request("k", "{}")).Status)
		f = newFixture(t, nil)
		h = f.Handler(http.HandlerFunc(panickyHandler))
	}
}
