package idempotency

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// Each case ends the claim after a second, or says when the wait ends otherwise.
func TestMemoryStoreAwait(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		end  func(ctx context.Context, s *MemoryStore, c Claim) error
		want time.Duration
	}{
		{"completed", func(ctx context.Context, s *MemoryStore, c Claim) error {
			return s.Complete(ctx, c, Response{Status: 200})
		}, time.Second},
		{"released", func(ctx context.Context, s *MemoryStore, c Claim) error {
			return s.Release(ctx, c)
		}, time.Second},
		{"released, reserved again", func(ctx context.Context, s *MemoryStore, c Claim) error {
			_, err := s.Reserve(ctx, another(c))
			return errors.Join(s.Release(ctx, c), err)
		}, time.Second},
		{"lapsed", func(context.Context, *MemoryStore, Claim) error {
			return nil
		}, testLease},
		{"extended, lapsed", func(ctx context.Context, s *MemoryStore, c Claim) error {
			return s.Extend(ctx, c)
		}, time.Second + testLease},
		{"extended, completed", func(ctx context.Context, s *MemoryStore, c Claim) error {
			time.Sleep(testLease - 2*time.Second)
			err := s.Extend(ctx, c)
			time.Sleep(testLease - time.Second)
			return errors.Join(err, s.Complete(ctx, c, Response{Status: 200}))
		}, 2*testLease - 2*time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				s, c := new(MemoryStore), testClaim("k")
				mustReserve(t, s, c, Acquired)
				start := time.Now()
				woken := make(chan time.Duration)
				const waiters = 20
				for range waiters {
					go func() {
						if s.Await(t.Context(), c.Key) == nil {
							woken <- time.Since(start)
						}
					}()
				}
				time.Sleep(time.Second)
				require.NoError(t, test.end(t.Context(), s, c))
				for range waiters {
					require.Equal(t, test.want, <-woken)
				}
			})
		})
	}
}

func TestMemoryStoreAwaitOfATakeover(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s, c := new(MemoryStore), testClaim("k")
		mustReserve(t, s, c, Acquired)
		start := time.Now()
		done := make(chan error)
		const waiters = 50
		for range waiters {
			go func() { done <- s.Await(t.Context(), c.Key) }()
		}
		synctest.Wait()
		time.Sleep(testLease)
		mustReserve(t, s, rerun(c), Acquired)
		for range waiters {
			require.NoError(t, <-done)
		}
		require.Equal(t, testLease, time.Since(start), "the claim that they waited for is over")
	})
}

func TestMemoryStoreAwaitWithNothingToWaitFor(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s, c := new(MemoryStore), testClaim("k")
		start := time.Now()
		require.NoError(t, s.Await(t.Context(), c.Key), "no record")
		mustReserve(t, s, c, Acquired)
		other := c.Key
		other.Tenant = "u"
		require.NoError(t, s.Await(t.Context(), other), "another tenant's key")
		require.Equal(t, start, time.Now())

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, s.Await(ctx, c.Key), context.DeadlineExceeded)
		require.Equal(t, time.Second, time.Since(start))

		time.Sleep(testLease)
		require.NoError(t, s.Await(t.Context(), c.Key), "interrupted")
		require.NoError(t, s.Complete(t.Context(), c, Response{Status: 200}))
		require.NoError(t, s.Await(t.Context(), c.Key), "completed")
		require.Equal(t, time.Second+testLease, time.Since(start))
	})
}

func TestMemoryStoreStuck(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := new(MemoryStore)
		ctx := t.Context()
		start := time.Now()
		var claims []Claim
		for _, value := range []string{"completed", "first", "second", "third", "released"} {
			claims = append(claims, testClaim(value))
			mustReserve(t, s, claims[len(claims)-1], Acquired)
			time.Sleep(time.Second)
		}
		first := claims[1]
		require.NoError(t, s.Complete(ctx, claims[0], Response{Status: 200}))
		require.NoError(t, s.Release(ctx, claims[4]))
		expired := testClaim("expired")
		expired.TTL = testLease
		mustReserve(t, s, expired, Acquired)
		time.Sleep(testLease)
		first = rerun(first)
		mustReserve(t, s, first, Acquired) // lapses last, but was reserved first
		time.Sleep(testLease)
		mustReserve(t, s, testClaim("live"), Acquired)

		stuck, err := s.Stuck(ctx, 10)
		require.NoError(t, err)
		require.Equal(t, []string{"first", "second", "third"}, values(stuck))
		require.Equal(t, 2, stuck[0].Attempt)
		require.Equal(t, first.Token, stuck[0].Token)
		require.Equal(t, first.Fingerprint, stuck[0].Fingerprint)
		require.Equal(t, start.Add(time.Second), stuck[0].CreatedAt)
		require.Equal(t, start.Add(5*time.Second+2*testLease), stuck[0].LapsedAt)
		require.Equal(t, start.Add(time.Second+testTTL), stuck[0].ExpiresAt)

		stuck, err = s.Stuck(ctx, 2)
		require.NoError(t, err)
		require.Equal(t, []string{"first", "second"}, values(stuck))
		for _, limit := range []int{0, -1} {
			_, err = s.Stuck(ctx, limit)
			require.Error(t, err)
		}
		stuck, err = new(MemoryStore).Stuck(ctx, 1)
		require.NoError(t, err)
		require.Empty(t, stuck)
	})
}

func values(stuck []StuckClaim) (values []string) {
	for _, claim := range stuck {
		values = append(values, claim.Key.Value)
	}
	return values
}

func TestMemoryStoreResolve(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s, c := new(MemoryStore), testClaim("k")
		ctx := t.Context()
		resp := &Response{Status: 201, Body: []byte("charged")}
		require.ErrorIs(t, s.Resolve(ctx, c.Key, c.Token, nil), ErrClaimLost, "no such claim")
		mustReserve(t, s, c, Acquired)
		require.ErrorIs(t, s.Resolve(ctx, c.Key, c.Token, resp), ErrClaimLost, "still running")
		time.Sleep(testLease)
		require.ErrorIs(t, s.Resolve(ctx, c.Key, another(c).Token, resp), ErrClaimLost, "another token")
		mustReserve(t, s, another(c), Interrupted)

		for _, status := range []int{-1, 1, 103, 199, 1000} {
			require.ErrorContains(t, s.Resolve(ctx, c.Key, c.Token, &Response{Status: status}), "status", status)
		}
		mustReserve(t, s, another(c), Interrupted)

		require.NoError(t, s.Resolve(ctx, c.Key, c.Token, resp))
		rec := mustReserve(t, s, another(c), Completed)
		require.Equal(t, *resp, rec.Response)
		require.ErrorIs(t, s.Resolve(ctx, c.Key, c.Token, nil), ErrClaimLost, "settled already")
		require.ErrorIs(t, s.Complete(ctx, c, Response{Status: 500}), ErrClaimLost,
			"an attempt that comes too late must not believe that its own outcome was recorded")

		time.Sleep(testTTL - testLease)
		d := another(c)
		mustReserve(t, s, d, Acquired) // the outcome did not move the expiry
		time.Sleep(testLease)
		require.NoError(t, s.Resolve(ctx, d.Key, d.Token, nil))
		rec = mustReserve(t, s, another(c), Acquired)
		require.Equal(t, 1, rec.Attempt)

		e := testClaim("expired")
		e.TTL = testLease
		mustReserve(t, s, e, Acquired)
		time.Sleep(testLease)
		require.ErrorIs(t, s.Resolve(ctx, e.Key, e.Token, resp), ErrClaimLost, "dead")
	})
}
