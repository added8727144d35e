package redisstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-2d1e5f61/idempotency"
	"github.com/seed-2d1e5f61/idempotency/redisstore/internal/testredis"
)

// traffic is 16 clients that reserve keys, charge and complete, each call repeated for a
// while when it fails. The ledger is the business behind them: it takes one charge for
// a key and refuses another.
type traffic struct {
	store    *Store
	newClaim func() idempotency.Claim
	patience time.Duration // of a client, for one call

	acknowledged atomic.Int64 // completions
	retries      atomic.Int64
	unhealed     atomic.Int64 // calls that failed until the client gave up
	longest      atomic.Int64 // until a call succeeded, in ns

	mu       sync.Mutex
	ledger   map[idempotency.Key]bool
	claims   []idempotency.Claim // acknowledged, whatever came then
	settled  map[idempotency.Key]bool
	surprise error
}

const clients = 16

func newTraffic(s *Store) *traffic {
	return &traffic{
		store: s, newClaim: newClaim, patience: 30 * time.Second,
		ledger: make(map[idempotency.Key]bool), settled: make(map[idempotency.Key]bool),
	}
}

// run keeps the clients going until during returns.
func (tr *traffic) run(t *testing.T, during func()) {
	t.Helper()
	var stop atomic.Bool
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			for !stop.Load() {
				tr.request(tr.newClaim())
			}
		})
	}
	defer all.Wait()
	defer stop.Store(true) // when during ends the test, too
	during()
}

func (tr *traffic) request(c idempotency.Claim) {
	var rec idempotency.Record
	if tr.retry(func(ctx context.Context) (err error) { rec, err = tr.store.Reserve(ctx, c); return }) != nil {
		return
	}
	tr.mu.Lock()
	if rec.State != idempotency.Acquired {
		tr.surprise = fmt.Errorf("a fresh key is in state %v", rec.State)
	}
	tr.claims = append(tr.claims, c)
	tr.ledger[c.Key] = true
	tr.mu.Unlock()

	err := tr.retry(func(ctx context.Context) error { return tr.store.Complete(ctx, c, created) })
	if err == nil {
		tr.acknowledged.Add(1)
		tr.mu.Lock()
		tr.settled[c.Key] = true
		tr.mu.Unlock()
	}
}

// retry repeats call until it works or the claim is lost.
func (tr *traffic) retry(call func(context.Context) error) error {
	begin := time.Now()
	for {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		err := call(ctx)
		cancel()
		took := time.Since(begin)
		switch {
		case err == nil:
			for seen := tr.longest.Load(); int64(took) > seen && !tr.longest.CompareAndSwap(seen, int64(took)); {
				seen = tr.longest.Load()
			}
			return nil
		case errors.Is(err, idempotency.ErrClaimLost):
			return err
		case took > tr.patience:
			tr.unhealed.Add(1)
			return err
		}
		tr.retries.Add(1)
		time.Sleep(20 * time.Millisecond)
	}
}

// progress waits until n more requests have been through.
func (tr *traffic) progress(t *testing.T, n int64) {
	t.Helper()
	goal := tr.acknowledged.Load() + n
	testredis.Eventually(t, "the clients get on", func() bool { return tr.acknowledged.Load() >= goal })
}

// losses counts what was acknowledged and is gone.
type losses struct {
	claims   int // a retry would run again; the ledger has refused each of these
	outcomes int // the claim is there, in progress: a retry would not run again
}

// verify retries every request that was acknowledged, on store.
func (tr *traffic) verify(t *testing.T, store *Store) losses {
	t.Helper()
	if tr.surprise != nil {
		t.Error(tr.surprise)
	}
	var lost losses
	work := make(chan idempotency.Claim)
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			for c := range work {
				rec, err := store.Reserve(t.Context(), rival(c))
				if err != nil {
					t.Error(err)
					continue
				}
				tr.mu.Lock()
				switch {
				case rec.State == idempotency.Acquired:
					lost.claims++
					if !tr.ledger[c.Key] {
						t.Error("the ledger would charge a second time")
					}
				case rec.State != idempotency.Completed && tr.settled[c.Key]:
					lost.outcomes++
				}
				tr.mu.Unlock()
			}
		})
	}
	for _, c := range tr.claims {
		work <- c
	}
	close(work)
	all.Wait()
	return lost
}

func (tr *traffic) report(t *testing.T, what string, lost losses) {
	t.Helper()
	t.Logf("%s: %d claims acknowledged, %d lost; %d outcomes acknowledged, %d lost; %d retries, %d calls never succeeded, the longest took %v",
		what, len(tr.claims), lost.claims, tr.acknowledged.Load(), lost.outcomes, tr.retries.Load(),
		tr.unhealed.Load(), time.Duration(tr.longest.Load()).Round(time.Millisecond))
}
