package idempotency

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What every store promises is checked by storetest. Here the clock is a bubble's, so
// that the instants are exact, and the memory store's own promises come in.

const (
	testLease = 30 * time.Second
	testTTL   = 24 * time.Hour
)

func testClaim(value string) Claim {
	return Claim{
		Key:         Key{Tenant: "t", Endpoint: "POST /", Value: value},
		Fingerprint: Fingerprint{1},
		Token:       uuid.New(),
		Lease:       testLease,
		TTL:         testTTL,
	}
}

// another is the same request by another attempt.
func another(c Claim) Claim {
	c.Token = uuid.New()
	return c
}

func rerun(c Claim) Claim {
	c = another(c)
	c.Rerun = true
	return c
}

func mustReserve(t *testing.T, s *MemoryStore, c Claim, want State) Record {
	t.Helper()
	rec, err := s.Reserve(t.Context(), c)
	require.NoError(t, err)
	require.Equal(t, want, rec.State)
	require.NoError(t, s.check())
	return rec
}

// inBubble runs f with a fake clock.
func inBubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, f)
}

func TestMemoryStoreLeaseEndsOnTime(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s, c := new(MemoryStore), testClaim("k")
		first := mustReserve(t, s, c, Acquired)
		require.Equal(t, testLease, first.LeaseLeft)

		time.Sleep(testLease - 1)
		rec := mustReserve(t, s, rerun(c), InFlight)
		require.Equal(t, time.Duration(1), rec.LeaseLeft)

		time.Sleep(time.Nanosecond)
		mustReserve(t, s, another(c), Interrupted)
		changed := rerun(c)
		changed.Fingerprint = Fingerprint{2}
		mustReserve(t, s, changed, Interrupted)

		second := mustReserve(t, s, rerun(c), Acquired)
		require.Equal(t, 2, second.Attempt)
		require.Equal(t, first.CreatedAt, second.CreatedAt)

		// The takeover did not move the expiry, so there the key starts anew.
		time.Sleep(testTTL - testLease - 1)
		mustReserve(t, s, another(c), Interrupted)
		time.Sleep(time.Nanosecond)
		third := mustReserve(t, s, another(c), Acquired)
		require.Equal(t, 1, third.Attempt)
		require.Equal(t, testTTL, third.CreatedAt.Sub(first.CreatedAt))
	})
}

func TestMemoryStoreRecordEndsOnTime(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s, c := new(MemoryStore), testClaim("k")
		mustReserve(t, s, c, Acquired)
		time.Sleep(time.Second)
		require.NoError(t, s.Complete(t.Context(), c, Response{Status: 200}))
		time.Sleep(testTTL - time.Second - 1)
		mustReserve(t, s, c, Completed)
		require.NoError(t, s.Complete(t.Context(), c, Response{Status: 200}))

		time.Sleep(time.Nanosecond)
		require.ErrorIs(t, s.Complete(t.Context(), c, Response{Status: 200}), ErrClaimLost)
		mustReserve(t, s, another(c), Acquired)
	})
}

func TestMemoryStoreRunPastItsTTL(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s, c := new(MemoryStore), testClaim("k")
		c.TTL = testLease
		mustReserve(t, s, c, Acquired)
		time.Sleep(testLease / 2)
		require.NoError(t, s.Extend(t.Context(), c))
		time.Sleep(testLease/2 + 1)
		mustReserve(t, s, rerun(c), InFlight)
		require.NoError(t, s.Complete(t.Context(), c, Response{Status: 200}))

		time.Sleep(testLease - 1)
		mustReserve(t, s, another(c), Completed)
		time.Sleep(time.Nanosecond)
		mustReserve(t, s, another(c), Acquired)
	})
}

func TestMemoryStoreSameTokenStartsItsLeaseAnew(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s, c := new(MemoryStore), testClaim("k")
		first := mustReserve(t, s, c, Acquired)
		time.Sleep(2 * testLease) // lapsed, but nobody took it
		again := mustReserve(t, s, c, Acquired)
		require.Equal(t, first, again)
		time.Sleep(testLease - 1)
		mustReserve(t, s, rerun(c), InFlight)
	})
}

func TestMemoryStoreLongestTTLIsForEver(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s, c := new(MemoryStore), testClaim("k")
		c.Lease, c.TTL = math.MaxInt64, math.MaxInt64
		mustReserve(t, s, testClaim("an hour before"), Acquired)
		time.Sleep(time.Hour)
		mustReserve(t, s, c, Acquired)
		time.Sleep(1000 * testTTL)
		mustReserve(t, s, rerun(c), InFlight)
	})
}

func TestMemoryStoreFull(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := &MemoryStore{MaxRecords: 100}
		claims := make([]Claim, s.MaxRecords)
		for i := range claims {
			claims[i] = testClaim(strconv.Itoa(i))
			mustReserve(t, s, claims[i], Acquired)
		}
		fresh := testClaim("fresh")
		refused := func() {
			t.Helper()
			_, err := s.Reserve(t.Context(), fresh)
			require.ErrorIs(t, err, ErrStoreFull)
			require.NoError(t, s.check())
		}
		refused()

		// Those who have a record go on.
		mustReserve(t, s, claims[0], Acquired)
		mustReserve(t, s, another(claims[0]), InFlight)
		require.NoError(t, s.Complete(t.Context(), claims[0], Response{Status: 200}))
		mustReserve(t, s, another(claims[0]), Completed)
		time.Sleep(testLease)
		mustReserve(t, s, rerun(claims[1]), Acquired)
		refused() // interrupted claims are live records, too

		require.NoError(t, s.Release(t.Context(), claims[2]))
		mustReserve(t, s, fresh, Acquired)
		fresh = testClaim("another fresh")
		refused()

		// All at once, in whichever shard they are: the dead make room for as many.
		time.Sleep(testTTL)
		for i := range s.MaxRecords {
			mustReserve(t, s, testClaim("new "+strconv.Itoa(i)), Acquired)
		}
		refused()
	})
}

func TestMemoryStoreEndedContextChangesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s, c := new(MemoryStore), testClaim("k")
		ended, cancel := context.WithCancel(t.Context())
		cancel()

		_, err := s.Reserve(ended, c)
		require.ErrorIs(t, err, context.Canceled)
		mustReserve(t, s, another(c), Acquired) // nobody had it

		c = testClaim("l")
		mustReserve(t, s, c, Acquired)
		time.Sleep(testLease / 2)
		require.ErrorIs(t, s.Extend(ended, c), context.Canceled)
		require.ErrorIs(t, s.Complete(ended, c, Response{Status: 200}), context.Canceled)
		require.ErrorIs(t, s.Release(ended, c), context.Canceled)
		require.ErrorIs(t, s.Await(ended, c.Key), context.Canceled)
		rec := mustReserve(t, s, another(c), InFlight)
		require.Equal(t, testLease/2, rec.LeaseLeft)

		time.Sleep(testLease / 2)
		require.ErrorIs(t, s.Resolve(ended, c.Key, c.Token, nil), context.Canceled)
		_, err = s.Stuck(ended, 1)
		require.ErrorIs(t, err, context.Canceled)
		mustReserve(t, s, another(c), Interrupted)
	})
}

// Equal hashes are one in 2^64, so the chain is tried by hand.
func TestMemoryShardChainsEqualHashes(t *testing.T) {
	t.Parallel()
	const hash = 7
	for first := range 3 {
		var sh memoryShard
		var records []*memoryRecord
		for i := range 3 {
			records = append(records, sh.insert(hash, newMemoryRecord(testClaim(strconv.Itoa(i)), 0)))
		}
		for i := range records {
			gone := records[(first+i)%3]
			require.Same(t, gone, sh.find(hash, gone.key))
			sh.remove(gone)
			require.Nil(t, sh.find(hash, gone.key))
		}
		require.Empty(t, sh.index)
		require.Empty(t, sh.mortals)
	}
}

// Whatever is called in whatever order by many at once, index, heap and count agree.
func TestMemoryStoreStaysConsistent(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := &MemoryStore{MaxRecords: 150}
		var wg sync.WaitGroup
		for worker := range 8 {
			wg.Go(func() {
				rng := rand.New(rand.NewPCG(1, uint64(worker)))
				for range 500 {
					playRound(t.Context(), s, rng)
					assert.NoError(t, s.checkShards())
				}
			})
		}
		wg.Wait()
		require.NoError(t, s.check())
	})
}

// playRound does what some attempt may do to one of a few keys, and lets time pass.
func playRound(ctx context.Context, s *MemoryStore, rng *rand.Rand) {
	c := rerun(testClaim(strconv.Itoa(rng.IntN(200))))
	c.TTL = time.Duration(1+rng.IntN(10)) * testLease
	rec, err := s.Reserve(ctx, c)
	if err != nil || rec.State != Acquired {
		time.Sleep(time.Duration(rng.IntN(int(time.Second))))
		return
	}
	time.Sleep(time.Duration(rng.IntN(int(testLease))))
	switch rng.IntN(5) {
	case 0:
		_ = s.Release(ctx, c)
	case 1, 2:
		_ = s.Complete(ctx, c, Response{Status: 200})
	case 3:
		_ = s.Extend(ctx, c)
		time.Sleep(2 * testLease)
		_ = s.Resolve(ctx, c.Key, c.Token, nil)
	}
}

// check reports what does not agree between the parts of a store that nobody is using.
func (s *MemoryStore) check() error {
	total := 0
	for i := range s.shards {
		total += len(s.shards[i].mortals)
	}
	if s.MaxRecords > 0 && (total != int(s.count.Load()) || total > s.MaxRecords) {
		return fmt.Errorf("%d records counted as %d of %d", total, s.count.Load(), s.MaxRecords)
	}
	return s.checkShards()
}

// checkShards reports what does not agree within a shard.
func (s *MemoryStore) checkShards() error {
	var errs []error
	for i := range s.shards {
		errs = append(errs, s.shards[i].check())
	}
	return errors.Join(errs...)
}

func (sh *memoryShard) check() error {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	indexed := 0
	for hash, r := range sh.index {
		for ; r != nil; r = r.next {
			indexed++
			if r.hash != hash || sh.mortals[r.position].record != r {
				return fmt.Errorf("%v is not where it says", r.key)
			}
		}
	}
	if indexed != len(sh.mortals) {
		return fmt.Errorf("%d records in the index, %d in the heap", indexed, len(sh.mortals))
	}
	for i, m := range sh.mortals {
		if m.diesAt != m.record.diesAt() || i > 0 && sh.mortals.Less(i, (i-1)/2) {
			return fmt.Errorf("%v is out of order", m.record.key)
		}
	}
	for _, m := range sh.mortals[len(sh.mortals):cap(sh.mortals)] {
		if m.record != nil {
			return fmt.Errorf("%v is dropped and still referred to", m.record.key)
		}
	}
	return nil
}
