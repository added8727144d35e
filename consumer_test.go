package idempotency_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency"
)

func succeed(context.Context) error { return nil }

func TestConsumerRunsAMessageOnceAndDropsDuplicates(t *testing.T) {
	t.Parallel()
	c := &idempotency.Consumer{Store: &idempotency.MemoryStore{}, Name: "ledger"}
	runs := 0
	for i := range 3 {
		ran, err := c.Do(t.Context(), "m1", func(ctx context.Context) error {
			runs++
			a := idempotency.FromContext(ctx)
			require.Equal(t, idempotency.Key{Tenant: "consumer", Endpoint: "ledger", Value: "m1"}, a.Key())
			require.Equal(t, 1, a.Number())
			return nil
		})
		require.NoError(t, err)
		require.Equal(t, i == 0, ran)
	}
	require.Equal(t, 1, runs)
}

func TestConsumersOfOtherNamesRunTheSameMessage(t *testing.T) {
	t.Parallel()
	store := &idempotency.MemoryStore{}
	for _, name := range []string{"ledger", "mail"} {
		ran, err := (&idempotency.Consumer{Store: store, Name: name}).Do(t.Context(), "m1", succeed)
		require.NoError(t, err)
		require.True(t, ran, name)
	}
}

func TestConsumerFreesAMessageWhoseFunctionFails(t *testing.T) {
	t.Parallel()
	errFailed := errors.New("no luck")
	for name, fail := range map[string]func() error{
		"error":  func() error { return errFailed },
		"panic":  func() error { panic(errFailed) },
		"goexit": func() error { runtime.Goexit(); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := &idempotency.Consumer{Store: &idempotency.MemoryStore{}, Name: "ledger"}
			var wg sync.WaitGroup
			wg.Go(func() {
				defer func() {
					if r := recover(); name == "panic" && r != errFailed {
						t.Errorf("the panic did not go on: %v", r)
					}
				}()
				ran, err := c.Do(t.Context(), "m1", func(context.Context) error { return fail() })
				if ran || err != errFailed {
					t.Errorf("Do = %v, %v", ran, err)
				}
			})
			wg.Wait()

			ran, err := c.Do(t.Context(), "m1", succeed)
			require.NoError(t, err)
			require.True(t, ran, "the message stayed taken")
		})
	}
}

func TestConsumerSaysWhenAMessageIsInFlight(t *testing.T) {
	t.Parallel()
	c := &idempotency.Consumer{Store: &idempotency.MemoryStore{}, Name: "ledger"}
	ran, err := c.Do(t.Context(), "m1", func(context.Context) error {
		ran, err := c.Do(t.Context(), "m1", succeed)
		require.ErrorIs(t, err, idempotency.ErrKeyInFlight)
		require.False(t, ran)
		return nil
	})
	require.NoError(t, err)
	require.True(t, ran)
}

func TestConsumerRunsOneOfManyDeliveriesAtOnce(t *testing.T) {
	t.Parallel()
	c := &idempotency.Consumer{Store: &idempotency.MemoryStore{}, Name: "ledger"}
	var runs, reported atomic.Int32
	var wg sync.WaitGroup
	for range 200 {
		wg.Go(func() {
			ran, err := c.Do(t.Context(), "m1", func(context.Context) error { runs.Add(1); return nil })
			if err != nil && !errors.Is(err, idempotency.ErrKeyInFlight) {
				t.Error(err)
			}
			if ran {
				reported.Add(1)
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, 1, runs.Load())
	require.EqualValues(t, 1, reported.Load())
}

// crash leaves the claim that a process leaves which died while it ran the message.
func crash(t *testing.T, store idempotency.Store, name, message string) {
	t.Helper()
	rec, err := store.Reserve(t.Context(), idempotency.Claim{
		Key:   idempotency.Key{Tenant: "consumer", Endpoint: name, Value: message},
		Token: [16]byte{1}, Lease: time.Second, TTL: time.Hour,
	})
	require.NoError(t, err)
	require.Equal(t, idempotency.Acquired, rec.State)
}

func TestConsumerAfterACrash(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &idempotency.MemoryStore{}
		crash(t, store, "ledger", "m1")
		hold := &idempotency.Consumer{Store: store, Name: "ledger"}
		rerun := &idempotency.Consumer{Store: store, Name: "ledger", AfterCrash: idempotency.Rerun}

		_, err := rerun.Do(t.Context(), "m1", succeed)
		require.ErrorIs(t, err, idempotency.ErrKeyInFlight, "the lease is live")

		time.Sleep(time.Second)
		ran, err := hold.Do(t.Context(), "m1", succeed)
		require.ErrorIs(t, err, idempotency.ErrOutcomeUnknown)
		require.False(t, ran)

		ran, err = rerun.Do(t.Context(), "m1", func(ctx context.Context) error {
			require.Equal(t, 2, idempotency.FromContext(ctx).Number())
			return nil
		})
		require.NoError(t, err)
		require.True(t, ran)
	})
}

func TestConsumerForgetsAfterItsTTL(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &idempotency.Consumer{Store: &idempotency.MemoryStore{}, Name: "ledger"}
		_, err := c.Do(t.Context(), "m1", succeed)
		require.NoError(t, err)
		time.Sleep(14*24*time.Hour - time.Second)
		ran, _ := c.Do(t.Context(), "m1", succeed)
		require.False(t, ran, "forgotten too early")
		time.Sleep(2 * time.Second)
		ran, _ = c.Do(t.Context(), "m1", succeed)
		require.True(t, ran)
	})
}

func TestConsumerKeepsTheCallersContextAndRecordsWithoutIt(t *testing.T) {
	t.Parallel()
	type key struct{}
	ctx, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "value"))
	c := &idempotency.Consumer{Store: &idempotency.MemoryStore{}, Name: "ledger"}
	ran, err := c.Do(ctx, "m1", func(ctx context.Context) error {
		require.Equal(t, "value", ctx.Value(key{}))
		cancel()
		<-ctx.Done()
		return nil // done all the same
	})
	require.NoError(t, err)
	require.True(t, ran)

	ran, err = c.Do(t.Context(), "m1", succeed)
	require.NoError(t, err)
	require.False(t, ran, "the record went with the caller's context")
}

// lossyStore fails as told.
type lossyStore struct {
	idempotency.Store
	reserve, extend, complete error
}

func (s *lossyStore) Reserve(ctx context.Context, c idempotency.Claim) (idempotency.Record, error) {
	if s.reserve != nil {
		return idempotency.Record{}, s.reserve
	}
	return s.Store.Reserve(ctx, c)
}

func (s *lossyStore) Extend(ctx context.Context, c idempotency.Claim) error {
	if s.extend != nil {
		return s.extend
	}
	return s.Store.Extend(ctx, c)
}

func (s *lossyStore) Complete(ctx context.Context, c idempotency.Claim, r idempotency.Response) error {
	if s.complete != nil {
		return s.complete
	}
	return s.Store.Complete(ctx, c, r)
}

func TestConsumerWhenTheStoreFails(t *testing.T) {
	t.Parallel()
	errDown := errors.New("down")
	synctest.Test(t, func(t *testing.T) {
		c := &idempotency.Consumer{Name: "ledger", Store: &lossyStore{Store: &idempotency.MemoryStore{}, reserve: errDown}}
		ran, err := c.Do(t.Context(), "m1", func(context.Context) error {
			t.Error("ran without a claim")
			return nil
		})
		require.False(t, ran)
		require.ErrorIs(t, err, idempotency.ErrUnavailable)
		require.ErrorIs(t, err, errDown)

		c.Store = &lossyStore{Store: &idempotency.MemoryStore{}, complete: errDown}
		ran, err = c.Do(t.Context(), "m1", succeed)
		require.True(t, ran, "it did run to success")
		require.ErrorIs(t, err, errDown, "but that is not recorded")
		synctest.Wait()
	})
}

func TestConsumerLearnsThatItsClaimIsLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &idempotency.Consumer{Name: "ledger", Lease: 3 * time.Second,
			Store: &lossyStore{Store: &idempotency.MemoryStore{}, extend: idempotency.ErrClaimLost}}
		began := time.Now()
		_, err := c.Do(t.Context(), "m1", func(ctx context.Context) error {
			<-ctx.Done()
			require.ErrorIs(t, context.Cause(ctx), idempotency.ErrClaimLost)
			return nil
		})
		require.ErrorIs(t, err, idempotency.ErrClaimLost)
		require.Equal(t, time.Second, time.Since(began), "at the first renewal, a third into the lease")
	})
}

func TestConsumerRefusesWhatItCannotKeep(t *testing.T) {
	t.Parallel()
	good := idempotency.Consumer{Store: &idempotency.MemoryStore{}, Name: "ledger"}
	for name, c := range map[string]struct {
		change func(*idempotency.Consumer)
		id     string
		want   string
	}{
		"no store":         {func(c *idempotency.Consumer) { c.Store = nil }, "m", "Store is nil"},
		"nil store":        {func(c *idempotency.Consumer) { c.Store = (*idempotency.MemoryStore)(nil) }, "m", "Store is nil"},
		"unmade store":     {func(c *idempotency.Consumer) { c.Store = &idempotency.PostgresStore{} }, "m", "Store was not made"},
		"no name":          {func(c *idempotency.Consumer) { c.Name = "" }, "m", "Name is empty"},
		"NUL in the name":  {func(c *idempotency.Consumer) { c.Name = "a\x00" }, "m", "Name is empty or not text"},
		"short TTL":        {func(c *idempotency.Consumer) { c.TTL = time.Second }, "m", "TTL is shorter than Lease"},
		"negative lease":   {func(c *idempotency.Consumer) { c.Lease = -1 }, "m", "Lease is shorter"},
		"unknown policy":   {func(c *idempotency.Consumer) { c.AfterCrash = 7 }, "m", "AfterCrash"},
		"no message ID":    {func(*idempotency.Consumer) {}, "", "message ID is empty"},
		"invalid UTF-8 ID": {func(*idempotency.Consumer) {}, "\xff", "message ID is empty or not text"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			consumer := good
			c.change(&consumer)
			ran, err := consumer.Do(t.Context(), c.id, func(context.Context) error {
				t.Error("ran")
				return nil
			})
			require.ErrorContains(t, err, c.want)
			require.False(t, ran)
		})
	}
}

func TestConsumerRefusesNoFunction(t *testing.T) {
	t.Parallel()
	store := newFaultStore("Reserve")
	ran, err := (&idempotency.Consumer{Store: store, Name: "ledger"}).Do(t.Context(), "m1", nil)
	require.ErrorContains(t, err, "fn is nil")
	require.False(t, ran)
	require.Empty(t, store.called())
}
