package idempotency

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Consumer runs each message once, where a broker may deliver it more often, and drops
// a duplicate without a word. Set its fields before the first use; then it is safe for
// concurrent use, by many processes on one store.
type Consumer struct {
	// Store remembers which messages were run. Required.
	Store Store
	// Name says which consumer this is: two consumers of one message each run it. It is
	// the Endpoint of the key. Required.
	Name string
	// TTL is how long a message that was run is remembered: longer than the queue can
	// deliver it again, and no shorter than Lease. 0: 14 days.
	TTL time.Duration
	// Lease is how long a claim stays live after a process died with it; it is renewed
	// while the function runs. 0: 30 s. It may not be shorter than 1 ms.
	Lease time.Duration
	// AfterCrash says what the next delivery meets when a process died while it ran the
	// message. Rerun with PostgresStore.InTx is exactly once; Hold, the zero value, keeps
	// the message from running until somebody has found out (ErrOutcomeUnknown).
	AfterCrash AfterCrash
}

// consumerTenant keeps message IDs apart from keys that clients send.
const consumerTenant = "consumer"

const defaultConsumerTTL = 14 * 24 * time.Hour

// Do runs fn for the message unless it has been run, and remembers that it was, under
// Key{"consumer", Name, messageID}. It reports whether fn ran to success here.
//
// A duplicate is (false, nil): acknowledge it. A message in flight elsewhere is
// ErrKeyInFlight: let the broker deliver it again. One whose process died is
// ErrOutcomeUnknown under [Hold], on every delivery until somebody resolves it. A store
// that fails, tried for up to 5 s, is ErrUnavailable, and fn has not run; a goroutine then
// frees, for some seconds more, what may have been claimed. An error of fn is returned,
// and it or a panic frees the message for the next delivery. If fn ran to success but
// that could not be recorded, Do returns true and an error. An empty Name or messageID,
// or one that is not text, no Store or no fn, is an error, and the store is not asked.
//
// fn's context is ctx, ended early if the claim is lost (context.Cause then matches
// ErrClaimLost); the record is written on a context of its own. [PostgresStore.InTx]
// works inside fn and needs no response: the effects and the record then stand or fall
// together. An error after a committed InTx gives (true, err): the message stays done.
func (c *Consumer) Do(ctx context.Context, messageID string, fn func(context.Context) error) (ran bool, err error) {
	life, err := c.lifecycle()
	if err != nil {
		return false, err
	}
	if fn == nil {
		return false, errors.New("idempotency: Consumer: fn is nil")
	}
	if messageID == "" || !storable(messageID) {
		return false, errors.New("idempotency: Consumer: the message ID is empty or not text")
	}
	claim := life.claim(Key{consumerTenant, c.Name, messageID}, Fingerprint{})
	rec, asked, err := life.reserve(ctx, claim)
	if err != nil {
		return false, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	switch rec.State {
	case Acquired:
		return runMessage(ctx, life, claim, rec, asked, fn)
	case Completed:
		return false, nil
	case InFlight:
		return false, ErrKeyInFlight
	default:
		return false, ErrOutcomeUnknown
	}
}

func (c *Consumer) lifecycle() (*lifecycle, error) {
	life := &lifecycle{
		store:        c.Store,
		lease:        c.Lease,
		ttl:          c.TTL,
		storeTimeout: defaultStoreTimeout,
		rerun:        c.AfterCrash == Rerun,
	}
	if life.lease == 0 {
		life.lease = defaultLease
	}
	if life.ttl == 0 {
		life.ttl = defaultConsumerTTL
	}
	flaw := storeFlaw(c.Store)
	var errs []error
	for _, check := range []struct {
		bad  bool
		what string
	}{
		{flaw != "", "Store " + flaw},
		{c.Name == "" || !storable(c.Name), "Name is empty or not text"},
		{life.lease < minLease, "Lease is shorter than 1 ms"},
		{life.ttl < life.lease, "TTL is shorter than Lease"},
		{c.AfterCrash != Hold && c.AfterCrash != Rerun, "AfterCrash is neither Hold nor Rerun"},
	} {
		if check.bad {
			errs = append(errs, errors.New("idempotency: Consumer: "+check.what))
		}
	}
	return life, errors.Join(errs...)
}

// runMessage runs fn under its claim. As in the middleware there is no recover: a panic
// or a Goexit is met by the deferred settling, and goes on.
func runMessage(
	ctx context.Context, life *lifecycle, claim Claim, rec Record, asked time.Time, fn func(context.Context) error,
) (ran bool, err error) {
	a := new(Attempt)
	a.ctx.attach(ctx, a)
	a.begin(life, claim, rec, asked)

	var fnErr error
	returned := false
	defer func() {
		resp, keep := a.outcome()
		outcome, recordErr := a.settle(resp, keep && returned && fnErr == nil)
		final, _ := a.verdict()
		// What a transaction has committed is done, whatever fn said afterwards.
		ran = outcome == Executed || fnErr == nil && final != uncertain
		err = fnErr // as it is, unless there is more to say
		if recordErr != nil {
			err = errors.Join(fnErr, recordErr)
		}
	}()
	fnErr = fn(&a.ctx)
	returned = true
	return ran, err
}
