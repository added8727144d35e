package idempotency

import (
	"cmp"
	"context"
	"errors"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
)

// MemoryStore is a [Store] for tests and for a single process: what it knows is lost
// when the process ends. Its zero value is ready, its methods may be called
// concurrently, and it must not be copied after first use.
//
// It needs no goroutine to forget: each Reserve drops a few dead records beside its own
// work. Its clock is the process's monotonic one, so a step of the wall clock moves
// neither lease nor TTL; inside a testing/synctest bubble it is the bubble's.
//
// A Completed record carries its Response only for the fingerprint it was recorded
// under. An error of a method is ErrClaimLost, ErrStoreFull (from Reserve), or that of
// a context which had ended before the call, which then changed nothing.
type MemoryStore struct {
	// MaxRecords bounds the number of records; 0 is no limit. In a full store Reserve
	// returns ErrStoreFull for a new key, once no dead record is left to drop: a live
	// one is never dropped for another. Set it before the first use.
	MaxRecords int

	once  sync.Once
	seed  maphash.Seed
	epoch time.Time // instants are kept as the time since then
	count atomic.Int64

	// Keys are spread over shards by hash, so that goroutines seldom wait for the same
	// lock. Nobody holds two locks at once.
	shards [64]memoryShard
}

// forgetPerReserve is how many dead records a Reserve drops at most. More than the one
// that it may add, so that a store which grew in a rush shrinks again.
const forgetPerReserve = 4

var errStuckLimit = errors.New("idempotency: Stuck: limit must be positive")

// Reserve implements [Store].
func (s *MemoryStore) Reserve(ctx context.Context, c Claim) (Record, error) {
	rec, err := s.reservePacked(ctx, c)
	if err != nil || rec.packed == "" {
		return rec, err
	}
	rec.Response, err = decodeOutcome(rec.packed) // a long body is copied outside the lock
	rec.packed = ""
	return rec, err
}

// reservePacked is Reserve that leaves the response of a Completed record packed.
func (s *MemoryStore) reservePacked(ctx context.Context, c Claim) (Record, error) {
	if err := ctx.Err(); err != nil {
		return Record{}, err
	}
	rec, err := s.reserve(c)
	if errors.Is(err, ErrStoreFull) {
		s.forgetAll()
		rec, err = s.reserve(c)
	}
	return rec, err
}

func (s *MemoryStore) reserve(c Claim) (rec Record, err error) {
	sh, hash := s.lock(c.Key)
	defer sh.mu.Unlock()
	now := s.now()
	s.forget(sh, now, forgetPerReserve)

	r := sh.find(hash, c.Key)
	if r != nil && r.dead(now) {
		s.drop(sh, r)
		r = nil
	}
	state := Completed
	switch {
	case r == nil:
		if !s.makeRoom() {
			return Record{}, ErrStoreFull
		}
		r = sh.insert(hash, newMemoryRecord(c, now))
		state = Acquired
	case r.outcome != "":
		if r.fingerprint == c.Fingerprint {
			rec.packed = r.outcome
		}
	case r.token == c.Token: // the reply to an earlier call was lost
		sh.extend(r, now, c.Lease)
		state = Acquired
	case now < r.leaseEnd:
		state = InFlight
	case c.Rerun && r.fingerprint == c.Fingerprint:
		r.token = c.Token
		r.attempt++
		r.wake()
		sh.extend(r, now, c.Lease)
		state = Acquired
	default:
		state = Interrupted
	}
	rec.State, rec.Fingerprint = state, r.fingerprint
	rec.Attempt, rec.CreatedAt = int(r.attempt), s.epoch.Add(r.createdAt)
	if state == Acquired || state == InFlight {
		rec.LeaseLeft = max(r.leaseEnd-now, 0)
	}
	return rec, nil
}

// Extend implements [Store].
func (s *MemoryStore) Extend(ctx context.Context, c Claim) error {
	return s.settle(ctx, c.Key, c.Token, func(sh *memoryShard, r *memoryRecord, now time.Duration) error {
		if r.outcome != "" {
			return ErrClaimLost
		}
		sh.extend(r, now, c.Lease)
		return nil
	})
}

// Complete implements [Store].
func (s *MemoryStore) Complete(ctx context.Context, c Claim, resp Response) error {
	outcome := encodeOutcome(resp) // before the lock: a long body takes its time
	return s.settle(ctx, c.Key, c.Token, func(sh *memoryShard, r *memoryRecord, now time.Duration) error {
		if r.outcome != "" {
			return nil // said before, by the same token
		}
		expiresAt := r.expiresAt
		if expiresAt <= now {
			expiresAt = after(now, c.TTL)
		}
		sh.complete(r, outcome, expiresAt)
		return nil
	})
}

// Release implements [Store].
func (s *MemoryStore) Release(ctx context.Context, c Claim) error {
	return s.settle(ctx, c.Key, c.Token, func(sh *memoryShard, r *memoryRecord, _ time.Duration) error {
		if r.outcome != "" {
			return ErrClaimLost
		}
		s.drop(sh, r)
		return nil
	})
}

// Resolve settles an interrupted claim that [MemoryStore.Stuck] listed: it records
// resp, so that the next retry replays it, or frees the key if resp is nil. It returns
// ErrClaimLost, and changes nothing, if the claim is no longer the one listed: it was
// taken over, extended, settled or forgotten. An attempt that still runs under token,
// only late, has lost its claim from then on. A status other than 200 to 999 is an error;
// 0 counts as 200.
func (s *MemoryStore) Resolve(ctx context.Context, key Key, token uuid.UUID, resp *Response) error {
	if err := checkResolution(resp); err != nil {
		return err
	}
	var outcome string
	if resp != nil {
		outcome = encodeOutcome(*resp)
	}
	return s.settle(ctx, key, token, func(sh *memoryShard, r *memoryRecord, now time.Duration) error {
		switch {
		case !r.interrupted(now):
			return ErrClaimLost
		case resp == nil:
			s.drop(sh, r)
		default:
			// The late attempt must not take this outcome for its own.
			r.token = uuid.New()
			sh.complete(r, outcome, r.expiresAt)
		}
		return nil
	})
}

// settle calls change, under the lock, with the record of key if token owns it or has
// completed it.
func (s *MemoryStore) settle(
	ctx context.Context, key Key, token uuid.UUID,
	change func(sh *memoryShard, r *memoryRecord, now time.Duration) error,
) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	sh, hash := s.lock(key)
	defer sh.mu.Unlock()
	now := s.now()
	r := sh.find(hash, key)
	if r == nil || r.token != token || r.dead(now) {
		return ErrClaimLost
	}
	return change(sh, r, now)
}

// Await implements [Waiter]. It sleeps until the claim is settled or its lease is over;
// it asks nothing in between.
func (s *MemoryStore) Await(ctx context.Context, key Key) error {
	var awaited <-chan struct{} // tells the claim first seen from a successor's
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		settled, left := s.watch(key)
		if settled == nil || awaited != nil && awaited != settled {
			return nil
		}
		awaited = settled
		lapse := time.NewTimer(left)
		select {
		case <-settled:
			lapse.Stop()
			return nil
		case <-ctx.Done():
			lapse.Stop()
			return ctx.Err()
		case <-lapse.C: // unless the lease has been extended since: look again
		}
	}
}

// watch returns the channel that is closed when the live claim on key ends, and its
// lease; nil if there is no live claim.
func (s *MemoryStore) watch(key Key) (settled <-chan struct{}, left time.Duration) {
	sh, hash := s.lock(key)
	defer sh.mu.Unlock()
	now := s.now()
	r := sh.find(hash, key)
	if r == nil || r.outcome != "" || r.leaseEnd <= now {
		return nil, 0
	}
	if r.settled == nil {
		r.settled = make(chan struct{})
	}
	return r.settled, r.leaseEnd - now
}

// Stuck lists up to limit interrupted claims, those reserved first in front. Whether
// their effects took place is not known: find out, then [MemoryStore.Resolve] them. It
// looks at every record, one shard after the other, so the list is no snapshot. A limit
// under 1 is an error.
func (s *MemoryStore) Stuck(ctx context.Context, limit int) ([]StuckClaim, error) {
	if limit < 1 {
		return nil, errStuckLimit
	}
	s.once.Do(s.init)
	var stuck []StuckClaim
	for i := range s.shards {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		stuck = s.appendStuck(stuck, &s.shards[i])
	}
	slices.SortFunc(stuck, func(a, b StuckClaim) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), a.LapsedAt.Compare(b.LapsedAt))
	})
	return slices.Clip(stuck[:min(limit, len(stuck))]), nil
}

func (s *MemoryStore) appendStuck(stuck []StuckClaim, sh *memoryShard) []StuckClaim {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := s.now()
	for _, m := range sh.mortals {
		r := m.record
		if !r.interrupted(now) || r.dead(now) {
			continue
		}
		stuck = append(stuck, StuckClaim{
			Key:         r.key,
			Fingerprint: r.fingerprint,
			Token:       r.token,
			Attempt:     int(r.attempt),
			CreatedAt:   s.epoch.Add(r.createdAt),
			LapsedAt:    s.epoch.Add(r.leaseEnd),
			ExpiresAt:   s.epoch.Add(r.expiresAt),
		})
	}
	return stuck
}

func (s *MemoryStore) init() {
	s.seed = maphash.MakeSeed()
	s.epoch = time.Now()
}

// lock returns the shard of key, locked, and the hash under which it knows key.
func (s *MemoryStore) lock(key Key) (*memoryShard, uint64) {
	s.once.Do(s.init)
	hash := maphash.Comparable(s.seed, key)
	sh := &s.shards[hash%uint64(len(s.shards))]
	sh.mu.Lock()
	return sh, hash
}

func (s *MemoryStore) now() time.Duration { return time.Since(s.epoch) }

// makeRoom counts one record more, or reports that the store is full.
func (s *MemoryStore) makeRoom() bool {
	if s.MaxRecords <= 0 {
		return true
	}
	for {
		n := s.count.Load()
		if n >= int64(s.MaxRecords) {
			return false
		}
		if s.count.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// drop removes r and counts one record less.
func (s *MemoryStore) drop(sh *memoryShard, r *memoryRecord) {
	sh.remove(r)
	r.wake()
	if s.MaxRecords > 0 {
		s.count.Add(-1)
	}
}

// forget drops up to limit dead records of sh, which is locked.
func (s *MemoryStore) forget(sh *memoryShard, now time.Duration, limit int) {
	for range limit {
		if len(sh.mortals) == 0 || sh.mortals[0].diesAt > now {
			return
		}
		s.drop(sh, sh.mortals[0].record)
	}
}

// forgetAll drops the dead records of every shard.
func (s *MemoryStore) forgetAll() {
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		s.forget(sh, s.now(), len(sh.mortals))
		sh.mu.Unlock()
	}
}
