package storetest_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/seed-2d1e5f61/idempotency"
)

// simpleStore does what Store says, one sentence after the other, but for its fault.
type simpleStore struct {
	fault   string
	mu      sync.Mutex
	records map[idempotency.Key]*simpleRecord
}

type simpleRecord struct {
	claim     idempotency.Claim // of the attempt that owns it
	attempt   int
	createdAt time.Time
	leaseEnd  time.Time
	expiresAt time.Time
	response  *idempotency.Response // nil while in progress
}

const noFault = ""

func newSimpleStore(fault string) *simpleStore {
	return &simpleStore{fault: fault, records: make(map[idempotency.Key]*simpleRecord)}
}

func (s *simpleStore) has(fault string) bool { return s.fault == fault }

func (s *simpleStore) dead(r *simpleRecord) bool {
	now := time.Now()
	if s.has("expires under a live lease") {
		return !now.Before(r.expiresAt)
	}
	if s.has("the longest TTL is none") && r.claim.TTL == math.MaxInt64 {
		return !now.Before(r.leaseEnd)
	}
	return !now.Before(r.expiresAt) && !now.Before(r.leaseEnd)
}

func (r *simpleRecord) lapsed() bool { return r.response == nil && !time.Now().Before(r.leaseEnd) }

// key is where s files the record of a key.
func (s *simpleStore) key(k idempotency.Key) idempotency.Key {
	switch s.fault {
	case "keys joined":
		return idempotency.Key{Value: k.Tenant + ":" + k.Endpoint + ":" + k.Value}
	case "tenants share keys":
		k.Tenant = ""
	case "keys in lower case":
		k.Value = strings.ToLower(k.Value)
	case "keys cut at 255":
		k.Value = k.Value[:min(len(k.Value), 255)]
	case "keys made valid UTF-8":
		k.Value = strings.ToValidUTF8(k.Value, "\ufffd")
	}
	return k
}

// find returns the record of k, nil for a dead one.
func (s *simpleStore) find(k idempotency.Key) *simpleRecord {
	r := s.records[s.key(k)]
	if r == nil || s.dead(r) && !s.has("never expires") {
		return nil
	}
	return r
}

func (s *simpleStore) Reserve(ctx context.Context, c idempotency.Claim) (idempotency.Record, error) {
	if err := ctx.Err(); err != nil {
		if s.has("ended context leaves a claim under no token") {
			s.insert(idempotency.Claim{Key: c.Key, Lease: c.Lease, TTL: c.TTL})
		}
		return idempotency.Record{}, err
	}
	if s.has("looks, then inserts") {
		s.mu.Lock()
		free := s.find(c.Key) == nil
		s.mu.Unlock()
		if free {
			time.Sleep(time.Millisecond)
			return s.insert(c).answer(idempotency.Acquired), nil
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.find(c.Key)
	switch {
	case r == nil:
		return s.insertLocked(c).answer(idempotency.Acquired), nil
	case r.response != nil:
		rec := r.answer(idempotency.Completed)
		rec.Response = s.copyOf(*r.response)
		if s.has("the caller's fingerprint") {
			rec.Fingerprint = c.Fingerprint
		}
		return rec, nil
	case r.claim.Token == c.Token && !s.has("a repeated token is a stranger"):
		r.leaseEnd = time.Now().Add(c.Lease)
		return r.answer(idempotency.Acquired), nil
	case !r.lapsed():
		if s.has("duplicates move the lease") {
			r.leaseEnd = time.Now().Add(c.Lease)
		}
		rec := r.answer(idempotency.InFlight)
		if s.has("the whole lease is left") {
			rec.LeaseLeft = r.claim.Lease
		}
		return rec, nil
	case s.has("lapsed is in flight"):
		return r.answer(idempotency.InFlight), nil
	case s.takesOver(r, c):
		s.takeOver(r, c)
		return r.answer(idempotency.Acquired), nil
	}
	return r.answer(idempotency.Interrupted), nil
}

func (s *simpleStore) takesOver(r *simpleRecord, c idempotency.Claim) bool {
	return (c.Rerun || s.has("takes over unasked")) &&
		(r.claim.Fingerprint == c.Fingerprint || s.has("takes over for any fingerprint"))
}

func (s *simpleStore) takeOver(r *simpleRecord, c idempotency.Claim) {
	r.claim = c
	r.leaseEnd = time.Now().Add(c.Lease)
	if !s.has("a takeover is no new attempt") {
		r.attempt++
	}
	if s.has("a takeover moves the expiry") {
		r.expiresAt = time.Now().Add(c.TTL)
	}
	if s.has("a takeover is a new record") {
		r.createdAt = time.Now()
	}
}

func (s *simpleStore) insert(c idempotency.Claim) *simpleRecord {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.insertLocked(c)
}

func (s *simpleStore) insertLocked(c idempotency.Claim) *simpleRecord {
	now, attempt := time.Now(), 1
	if old := s.records[s.key(c.Key)]; old != nil && s.has("attempts counted across expiry") {
		attempt = old.attempt + 1
	}
	r := &simpleRecord{
		claim: c, attempt: attempt, createdAt: now,
		leaseEnd: now.Add(c.Lease), expiresAt: now.Add(c.TTL),
	}
	if s.has("the longest lease is none") && c.Lease == math.MaxInt64 {
		r.leaseEnd = now
	}
	s.records[s.key(c.Key)] = r
	copied := *r // nobody reads a record without the lock
	return &copied
}

func (r *simpleRecord) answer(state idempotency.State) idempotency.Record {
	return idempotency.Record{
		State: state, Fingerprint: r.claim.Fingerprint, Attempt: r.attempt,
		CreatedAt: r.createdAt, LeaseLeft: time.Until(r.leaseEnd),
	}
}

// settle calls change with c's record, if c's token may settle it.
func (s *simpleStore) settle(ctx context.Context, c idempotency.Claim, unfenced string, change func(r *simpleRecord) error) error {
	if err := ctx.Err(); err != nil && !s.has("ended context completes another response") {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.find(c.Key)
	if s.has("dead records still settle") {
		r = s.records[s.key(c.Key)]
	}
	if r == nil || r.claim.Token != c.Token && !s.has(unfenced) {
		if s.has("lost is a plain error") {
			return errors.New("no such claim")
		}
		return idempotency.ErrClaimLost
	}
	if s.has("a lapsed owner is refused") && r.lapsed() {
		return idempotency.ErrClaimLost
	}
	return change(r)
}

func (s *simpleStore) Extend(ctx context.Context, c idempotency.Claim) error {
	return s.settle(ctx, c, "unfenced Extend", func(r *simpleRecord) error {
		if r.response != nil {
			return idempotency.ErrClaimLost
		}
		if !s.has("Extend does nothing") {
			r.leaseEnd = time.Now().Add(c.Lease)
		}
		return nil
	})
}

func (s *simpleStore) Complete(ctx context.Context, c idempotency.Claim, resp idempotency.Response) error {
	if ctx.Err() != nil && s.has("ended context completes another response") {
		resp = idempotency.Response{Status: 499}
	}
	return s.settle(ctx, c, "unfenced Complete", func(r *simpleRecord) error {
		if r.response != nil {
			switch {
			case s.has("Complete again overwrites"):
			case s.has("Complete again is refused"):
				return idempotency.ErrClaimLost
			default:
				return nil
			}
		}
		now := time.Now()
		if s.has("Complete moves the expiry") || !now.Before(r.expiresAt) && !s.has("a late run is not kept") {
			r.expiresAt = now.Add(c.TTL)
		}
		kept := s.copyOf(s.damaged(resp))
		r.response, r.leaseEnd = &kept, now
		return nil
	})
}

func (s *simpleStore) Release(ctx context.Context, c idempotency.Claim) error {
	err := s.settle(ctx, c, "unfenced Release", func(r *simpleRecord) error {
		switch {
		case r.response != nil:
			return idempotency.ErrClaimLost
		case s.has("Release leaves an interrupted claim"):
			r.leaseEnd = time.Now()
		default:
			delete(s.records, s.key(c.Key))
		}
		return nil
	})
	if s.has("Release repeated succeeds") && errors.Is(err, idempotency.ErrClaimLost) {
		return nil
	}
	return err
}

// Sweep implements Sweeper.
func (s *simpleStore) Sweep(_ context.Context, limit int) (deleted int, err error) {
	if limit < 1 {
		return 0, errors.New("limit must be positive")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, r := range s.records {
		doomed := s.dead(r) || s.has("Sweep takes the interrupted") && r.lapsed() ||
			s.has("Sweep takes whatever is past its TTL") && !time.Now().Before(r.expiresAt)
		if doomed && (deleted < limit || s.has("Sweep without a limit")) {
			delete(s.records, key)
			deleted++
		}
	}
	return deleted, nil
}

// Await implements Waiter, for the sake of brevity by asking.
func (s *simpleStore) Await(ctx context.Context, key idempotency.Key) error {
	for ctx.Err() == nil {
		s.mu.Lock()
		r := s.find(key)
		over := r == nil && !s.has("Await misses Release") || r != nil && r.response != nil ||
			r != nil && r.lapsed() && !s.has("Await misses the end of a lease")
		s.mu.Unlock()
		if over {
			return nil
		}
		time.Sleep(time.Millisecond)
	}
	return ctx.Err()
}

func (s *simpleStore) Stuck(_ context.Context, limit int) (stuck []idempotency.StuckClaim, err error) {
	if limit < 1 {
		return nil, errors.New("limit must be positive")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.records {
		if (r.lapsed() || s.has("Stuck lists what is live") && r.response == nil) && !s.dead(r) {
			stuck = append(stuck, idempotency.StuckClaim{
				Key: r.claim.Key, Fingerprint: r.claim.Fingerprint, Token: r.claim.Token, Attempt: r.attempt,
				CreatedAt: r.createdAt, LapsedAt: r.leaseEnd, ExpiresAt: r.expiresAt,
			})
		}
	}
	slices.SortFunc(stuck, func(a, b idempotency.StuckClaim) int {
		if s.has("Stuck lists the youngest first") {
			return b.CreatedAt.Compare(a.CreatedAt)
		}
		return a.CreatedAt.Compare(b.CreatedAt)
	})
	return stuck[:min(limit, len(stuck))], nil
}

func (s *simpleStore) Resolve(ctx context.Context, key idempotency.Key, token uuid.UUID, resp *idempotency.Response) error {
	c := idempotency.Claim{Key: key, Token: token}
	return s.settle(ctx, c, "unfenced Resolve", func(r *simpleRecord) error {
		switch {
		case r.response != nil || !r.lapsed() && !s.has("Resolve settles what is live"):
			return idempotency.ErrClaimLost
		case resp == nil:
			delete(s.records, s.key(key))
		default:
			kept := s.copyOf(*resp)
			r.response = &kept
			if !s.has("Resolve leaves the token") {
				r.claim.Token = uuid.New()
			}
		}
		return nil
	})
}
