package idempotency

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

type contextTestKey struct{}

// detached is a run's context whose caller has left.
func detached(timeout time.Duration) *runContext {
	parent, leave := context.WithCancelCause(context.WithValue(context.Background(), contextTestKey{}, "v"))
	leave(context.DeadlineExceeded)
	c := new(runContext)
	c.detach(parent, new(Attempt), timeout)
	return c
}

func TestRunContextKeepsValuesAndNotTheEnd(t *testing.T) {
	t.Parallel()
	for _, timeout := range []time.Duration{0, time.Hour} {
		c := detached(timeout)
		require.Same(t, c.attempt, FromContext(c))
		require.Equal(t, "v", c.Value(contextTestKey{}))
		require.NoError(t, context.Cause(c), "the parent's end shows through")
		require.NoError(t, c.Err())
		_, ok := c.Deadline()
		require.Equal(t, timeout > 0, ok)

		child, cancel := context.WithCancel(c)
		defer cancel()
		require.NoError(t, child.Err())
		c.end(ErrClaimLost)
		<-child.Done()
		require.Equal(t, context.Canceled, c.Err())
		require.Equal(t, ErrClaimLost, context.Cause(child))
	}
}

// Whether it is asked before its end or after it, a run's context tells the same.
func TestRunContextAskedAfterItsEnd(t *testing.T) {
	t.Parallel()
	for _, cause := range []error{nil, ErrClaimLost} {
		want := cause
		if cause == nil {
			want = context.Canceled
		}
		for name, asked := range map[string]bool{"before": true, "after": false} {
			c := detached(0)
			if asked {
				require.NoError(t, c.Err())
			}
			c.end(cause)
			c.end(context.DeadlineExceeded) // comes too late
			require.Equal(t, context.Canceled, c.Err(), name)
			<-c.Done()
			require.Equal(t, want, context.Cause(c), name)
		}
	}
}

// A bubble with a goroutine left in it fails.
func TestRunContextNeedsNoGoroutineForAChild(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan struct{})
		c := detached(0)
		context.AfterFunc(c, func() { close(ended) })
		context.AfterFunc(detached(0), func() { t.Error("the other one ended") })
		c.end(nil)
		<-ended
	})
}

func TestRunContextAskedByMany(t *testing.T) {
	t.Parallel()
	c := detached(0)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			<-c.Done()
			if context.Cause(c) != ErrClaimLost {
				t.Errorf("cause is %v", context.Cause(c))
			}
		})
	}
	wg.Go(func() { c.end(ErrClaimLost) })
	wg.Go(func() { c.end(ErrClaimLost) })
	wg.Wait()
}

// A handler that asks its context nothing does not pay for it.
func TestRunContextThatNobodyAsks(t *testing.T) {
	parent, a := context.Background(), new(Attempt)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		a.ctx = runContext{}
		a.ctx.detach(parent, a, 0)
		if FromContext(&a.ctx) != a {
			t.Fatal("lost")
		}
		a.ctx.end(nil)
	}))
}
