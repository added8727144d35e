package idempotency_test

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency"
)

// contextOf runs a handler, which may use its context, and returns that context.
func contextOf(t *testing.T, use func(context.Context), changes ...func(*idempotency.Config)) (ctx context.Context) {
	t.Helper()
	call(newFixture(t, nil, changes...).Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		ctx = r.Context()
		use(ctx)
	})), request("k", "{}"))
	return ctx
}

// What the handler started on its context ends with the attempt, whether it asked for
// the context's end before or asks for it afterwards.
func TestContextEndsWithTheAttempt(t *testing.T) {
	t.Parallel()
	for name, use := range map[string]func(context.Context){
		"not asked": func(context.Context) {},
		"asked":     func(ctx context.Context) { ctx.Done() },
		"value":     func(ctx context.Context) { ctx.Value(name("x")) },
	} {
		for _, timeout := range []time.Duration{0, time.Hour} {
			ctx := contextOf(t, use, func(c *idempotency.Config) { c.HandlerTimeout = timeout })
			closed(t, ctx.Done())
			require.Equal(t, context.Canceled, ctx.Err(), name)
			require.Equal(t, context.Canceled, context.Cause(ctx), name)
			child, cancel := context.WithCancel(ctx)
			closed(t, child.Done())
			cancel()
		}
	}
}

type name string

func TestChildrenOfTheContext(t *testing.T) {
	t.Parallel()
	var children []context.Context
	after := make(chan struct{})
	contextOf(t, func(ctx context.Context) {
		for n := range 3 {
			child, cancel := context.WithTimeout(context.WithValue(ctx, name("n"), n), time.Hour)
			t.Cleanup(cancel)
			children = append(children, child)
			require.Equal(t, n, child.Value(name("n")))
			require.NotNil(t, idempotency.FromContext(child))
			require.NoError(t, child.Err())
		}
		context.AfterFunc(ctx, func() { close(after) })
	})
	for _, child := range children {
		closed(t, child.Done())
		require.Equal(t, context.Canceled, context.Cause(child))
	}
	closed(t, after)
}

// The parent's end must not be found through its values.
func TestContextOfALeavingClientWithACause(t *testing.T) {
	t.Parallel()
	parent, leave := context.WithCancelCause(t.Context())
	var cause error
	call(newFixture(t, nil).Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		leave(assert.AnError)
		child, cancel := context.WithCancel(r.Context())
		defer cancel()
		cause = context.Cause(child)
	})), request("k", "{}").WithContext(parent))
	require.NoError(t, cause)
}

// A handler that asks for the first time after its claim was lost is told why.
func TestCauseForWhoAsksLate(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var cause error
		call(newFixture(t, newFaultStore("Extend", takenOver)).Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			time.Sleep(time.Minute)
			cause = context.Cause(r.Context())
		})), request("k", "{}"))
		require.Equal(t, idempotency.ErrClaimLost, cause)
	})
}

// Goroutines of a handler ask its context for everything while it ends.
func TestContextIsSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	var askers sync.WaitGroup
	for range 100 {
		contextOf(t, func(ctx context.Context) {
			for range 4 {
				askers.Go(func() {
					ctx.Deadline()
					ctx.Value(name("x"))
					child, cancel := context.WithCancel(ctx)
					defer cancel()
					<-child.Done()
					assert.Equal(t, context.Canceled, ctx.Err())
				})
			}
		})
		askers.Wait()
	}
}
