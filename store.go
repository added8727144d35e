package idempotency

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
)

// Store keeps claims and outcomes. Its methods may be called concurrently and from
// many processes. An error is [ErrClaimLost] or a failure of the store itself, after
// which the caller does not know whether the call took effect.
//
// A token owns its key from the Reserve that acquired it until another Reserve takes
// it over, it is completed or released, or the record is dead: expired with no live
// lease on it. A lapsed claim that nobody took may still be extended and completed.
//
// Only the store's clock judges leases and TTLs. What a store is given and what it
// returns shares no memory with what it keeps. storetest.Run checks all of this.
type Store interface {
	// Reserve atomically takes the key for c.Token, or says who has it. A dead record
	// is as good as none; reserving over it starts with a new CreatedAt, a new expiry
	// and Attempt 1. With c.Rerun a lapsed claim of the same fingerprint is taken over,
	// which keeps CreatedAt and the expiry and raises Attempt.
	//
	// The same token gets the same answer again, so that a caller who lost the reply
	// may repeat the call: Acquired while in progress (the lease starts anew), Completed
	// after. The lease of anyone else's claim never moves.
	//
	// Response is set when the record is Completed and c.Fingerprint is the record's;
	// for another fingerprint a store may leave it out.
	Reserve(ctx context.Context, c Claim) (Record, error)

	// Extend starts the lease of a claim in progress anew. It returns ErrClaimLost, and
	// changes nothing, unless c.Token owns the key.
	Extend(ctx context.Context, c Claim) error

	// Complete records resp. It is final, and the same token may repeat it; the first
	// response stays. It does not move the expiry, except for a run that ends after its
	// TTL: that one is kept for one more TTL from now, so that its retry meets it. It
	// returns ErrClaimLost, and changes nothing, unless c.Token owns the key.
	Complete(ctx context.Context, c Claim, resp Response) error

	// Release frees the key as if it had never been reserved. It returns ErrClaimLost,
	// and changes nothing, unless c.Token owns the key in progress; repeated, it is
	// therefore ErrClaimLost.
	Release(ctx context.Context, c Claim) error
}

// storeFlaw says why no call of store can work, or "". Of other packages' stores it knows
// nothing: a nil pointer may well be one.
func storeFlaw(store Store) string {
	switch s := store.(type) {
	case nil:
		return "is nil"
	case *MemoryStore:
		if s == nil {
			return "is nil"
		}
	case *PostgresStore:
		if s.unmade() {
			return "was not made by NewPostgresStore"
		}
	}
	return ""
}

// Waiter is a [Store] in which a duplicate can wait for the running attempt without
// asking again and again. With a store that has no Await, the middleware polls.
type Waiter interface {
	// Await returns nil as soon as no live claim is on key: it was completed or
	// released, its lease lapsed, it expired, or there was none. Otherwise it waits
	// until ctx ends and returns ctx's error. It may return nil too early.
	Await(ctx context.Context, key Key) error
}

// Sweeper is a [Store] that does not forget expired records by itself.
type Sweeper interface {
	// Sweep deletes up to limit dead records and returns how many it deleted. A limit
	// under 1 is an error.
	Sweep(ctx context.Context, limit int) (deleted int, err error)
}

// Claim is what an attempt asks of a [Store]. Lease and TTL are lengths, not instants,
// because only the store's clock counts.
type Claim struct {
	Key         Key
	Fingerprint Fingerprint
	Token       uuid.UUID     // random for each attempt: the fence
	Lease       time.Duration // how long the claim is live without being extended
	TTL         time.Duration // how long the record lives, from the first reservation
	Rerun       bool          // may take over an interrupted claim of the same fingerprint

	// compact says that Key's parts are cut from one string which holds nothing else, so
	// that a store in memory may keep them without a copy.
	compact bool
}

// Record is what a [Store] knows of a key.
type Record struct {
	State       State
	Fingerprint Fingerprint   // the first request's; the middleware compares it on every path
	Attempt     int           // runs so far, this one included; starts at 1 again after expiry
	LeaseLeft   time.Duration // if Acquired or InFlight
	CreatedAt   time.Time     // the first reservation, by the store's clock
	Response    Response      // if Completed

	// packed is Response as a MemoryStore keeps it. The middleware alone is given it, to
	// unpack it into a replay with fewer copies.
	packed string
}

// State says where a key's record stands. The zero value is none of them.
type State int

const (
	Acquired    State = iota + 1 // yours to run
	InFlight                     // another token is running it
	Interrupted                  // its lease lapsed with no outcome
	Completed                    // its outcome is recorded
)

// StuckClaim is an interrupted claim: its attempt stopped without an outcome, and
// whether its effects took place is not known. [PostgresStore.Stuck] and
// [MemoryStore.Stuck] list them; Resolve settles one, fenced by Token.
type StuckClaim struct {
	Key         Key
	Fingerprint Fingerprint
	Token       uuid.UUID // the attempt's, which Resolve wants to see
	Attempt     int       // its number, from 1
	CreatedAt   time.Time // the first reservation
	LapsedAt    time.Time // the end of the lease
	ExpiresAt   time.Time // when the record is forgotten if nobody resolves it
}

// checkResolution refuses a status that net/http would panic at in every replay. 0 is a
// message's, or for a request 200, as it is for a handler that sets none.
func checkResolution(resp *Response) error {
	if resp == nil || resp.Status == 0 || resp.Status >= 200 && resp.Status <= 999 {
		return nil
	}
	return fmt.Errorf("idempotency: Resolve: status %d is not a final one, 200 to 999", resp.Status)
}

// RunSweeper sweeps at each interval until ctx ends, then returns ctx's error. It
// blocks; start it in a goroutine, in one process or in all of them. Each time it
// deletes batches, with a short pause between two of them, until nothing dead is left.
// A failed sweep is logged to slog.Default and tried again at the next interval. An
// interval under 1, or no s, is an error.
func RunSweeper(ctx context.Context, s Sweeper, interval time.Duration) error {
	if interval < 1 {
		return errors.New("idempotency: RunSweeper: interval must be positive")
	}
	if s == nil {
		return errors.New("idempotency: RunSweeper: the store is nil")
	}
	for {
		sweepAll(ctx, s)
		if err := pause(ctx, interval); err != nil {
			return err
		}
	}
}

// Measured: batches of this size with this pause between them cost the foreground
// nothing, while sweeping without a pause took a third of its throughput.
const (
	sweepBatch = 1000
	sweepPause = 50 * time.Millisecond
)

func sweepAll(ctx context.Context, s Sweeper) {
	for {
		deleted, err := s.Sweep(ctx, sweepBatch)
		if err != nil && ctx.Err() == nil {
			slog.WarnContext(ctx, "idempotency: sweep failed", "error", err)
		}
		if err != nil || deleted < sweepBatch || pause(ctx, sweepPause) != nil {
			return
		}
	}
}

// pause waits for d, or returns ctx's error as soon as ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
