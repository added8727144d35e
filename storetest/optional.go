package storetest

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/seed-2d1e5f61/idempotency"
)

var optionalChecks = []check{
	{
		"Sweep",
		"Sweep deletes dead records, up to its limit, and no others",
		"a live claim or a recorded outcome disappears, and the operation is run again",
		sweep,
	},
	{
		"Await",
		"Await returns as soon as no live claim is on the key, or its context ends",
		"a duplicate waits for its whole time though the response is there",
		await,
	},
	{
		"Stuck",
		"Stuck lists the interrupted claims, and only them, oldest first",
		"an operation whose outcome nobody knows is never looked at",
		stuck,
	},
	{
		"Resolve",
		"Resolve settles an interrupted claim, fenced by its token, and its late attempt has lost the key",
		"a person overwrites what an attempt did after all, or the attempt what the person decided",
		resolve,
	},
}

func sweep(p *probe) {
	sweeper, ok := p.store.(idempotency.Sweeper)
	if !ok {
		p.Skip("the store is no Sweeper")
	}
	sweepUpTo := func(limit int) (deleted int) {
		p.Helper()
		err := p.call("Sweep", func(ctx context.Context) (err error) {
			deleted, err = sweeper.Sweep(ctx, limit)
			return err
		})
		if (err != nil) != (limit < 1) {
			p.broken("Sweep with limit %d says %v", limit, err)
		}
		return deleted
	}

	live, completed, pastTTL := p.claim(), p.claim(), p.claim()
	pastTTL.TTL = short
	for _, c := range []idempotency.Claim{live, completed, pastTTL} {
		p.expect(c, idempotency.Acquired, "on a fresh key")
	}
	p.must(complete(answer("kept")), completed, "for the owner")
	interrupted := p.lapsed()
	var dead []idempotency.Claim
	for i := range 5 {
		c := p.claim()
		c.TTL = short
		if i%2 == 0 {
			c.Lease = short
		}
		p.expect(c, idempotency.Acquired, "on a fresh key")
		if c.Lease > short {
			p.must(complete(answer("dead")), c, "for the owner")
		}
		dead = append(dead, c)
	}
	sleepPast(time.Now(), short)

	sweepUpTo(0)
	sweepUpTo(-1)
	swept := 0
	for range 10 {
		deleted := sweepUpTo(2)
		if deleted < 0 || deleted > 2 {
			p.broken("Sweep with limit 2 says that it deleted %d", deleted)
		}
		swept += deleted
	}
	if swept != len(dead) {
		p.broken("of %d dead records Sweep says that it deleted %d", len(dead), swept)
	}
	p.expect(rerun(live), idempotency.InFlight, "a live claim, after Sweep")
	p.expect(rerun(pastTTL), idempotency.InFlight, "a live claim past its TTL, after Sweep")
	p.expect(retry(interrupted), idempotency.Interrupted, "an interrupted claim, after Sweep")
	p.replays(completed, answer("kept"), "a completed record, after Sweep")
	for _, c := range dead {
		p.expect(differentRequest(c), idempotency.Acquired, "a dead record, after Sweep")
	}
}

func await(p *probe) {
	waiter, ok := p.store.(idempotency.Waiter)
	if !ok {
		p.Skip("the store is no Waiter")
	}
	// wakes wants everyone who waits for c's key to be woken by what end does.
	wakes := func(c idempotency.Claim, waiters int, when string, end func()) {
		p.Helper()
		ctx, cancel := context.WithTimeout(p.ctx, limit/4)
		defer cancel()
		errs := make(chan error, waiters)
		var all sync.WaitGroup
		for range waiters {
			all.Go(func() { errs <- waiter.Await(ctx, c.Key) })
		}
		end()
		_ = p.call("Await", func(context.Context) error { all.Wait(); return nil })
		for range waiters {
			if err := <-errs; err != nil {
				p.broken("%s, Await says %v; want no error", when, err)
			}
		}
	}
	nothing := func() {}
	wakes(p.claim(), 1, "with no record", nothing)

	// Whether the waiters come before the end or after it, none may miss it.
	var c idempotency.Claim
	for range 10 {
		c = p.claim()
		p.expect(c, idempotency.Acquired, "on a fresh key")
		wakes(c, 10, "after Complete", func() { p.must(complete(answer("done")), c, "for the owner") })

		d := p.claim()
		p.expect(d, idempotency.Acquired, "on a fresh key")
		wakes(d, 10, "after Release", func() { p.must(release, d, "for the owner") })
	}
	wakes(c, 1, "on a completed record", nothing)

	lapsing := p.claim()
	lapsing.Lease = short
	p.expect(lapsing, idempotency.Acquired, "on a fresh key")
	wakes(lapsing, 10, "after the lease", func() { p.must(extend, lapsing, "for the owner") })
	wakes(lapsing, 1, "on an interrupted claim", nothing)

	live := p.claim()
	p.expect(live, idempotency.Acquired, "on a fresh key")
	ctx, cancel := context.WithTimeout(p.ctx, short)
	defer cancel()
	err := p.call("Await", func(context.Context) error { return waiter.Await(ctx, live.Key) })
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		p.broken("Await says %v when its deadline is over; want the context's error", err)
	}
	p.expect(retry(live), idempotency.InFlight, "after somebody waited")
}

// resolver is what a store offers to settle by hand what a crash has left.
type resolver interface {
	Stuck(ctx context.Context, limit int) ([]idempotency.StuckClaim, error)
	Resolve(ctx context.Context, key idempotency.Key, token uuid.UUID, resp *idempotency.Response) error
}

func (p *probe) resolver() resolver {
	r, ok := p.store.(resolver)
	if !ok {
		p.Skip("the store has no Stuck and Resolve")
	}
	return r
}

func (p *probe) stuck(limit int) (claims []idempotency.StuckClaim) {
	p.Helper()
	err := p.call("Stuck", func(ctx context.Context) (err error) {
		claims, err = p.resolver().Stuck(ctx, limit)
		return err
	})
	if (err != nil) != (limit < 1) {
		p.broken("Stuck with limit %d says %v", limit, err)
	}
	return claims
}

func stuck(p *probe) {
	p.resolver()
	if got := p.stuck(10); len(got) != 0 {
		p.broken("an empty store lists %d claims", len(got))
	}
	p.stuck(0)
	live, completed, released, dead := p.claim(), p.claim(), p.claim(), p.claim()
	dead.Lease, dead.TTL = short, short
	var lapsed [3]idempotency.Claim
	var created [3]idempotency.Record
	for i := range lapsed {
		lapsed[i] = p.claim()
		lapsed[i].Lease = short
		created[i] = p.expect(lapsed[i], idempotency.Acquired, "on a fresh key")
		time.Sleep(10 * time.Millisecond) // so that also a store that rounds knows the order
	}
	for _, c := range []idempotency.Claim{live, completed, released, dead} {
		p.expect(c, idempotency.Acquired, "on a fresh key")
	}
	p.must(complete(answer("done")), completed, "for the owner")
	p.must(release, released, "for the owner")
	sleepPast(time.Now(), short)

	got := p.stuck(10)
	if len(got) != len(lapsed) {
		p.broken("of %d interrupted claims beside 4 others Stuck lists %d", len(lapsed), len(got))
	}
	for i, claim := range got {
		if claim.Key != lapsed[i].Key || claim.Token != lapsed[i].Token ||
			claim.Fingerprint != lapsed[i].Fingerprint || claim.Attempt != 1 {
			p.broken("claim %d is listed as %+v; want %+v", i, claim, lapsed[i])
		}
		if !sameInstant(claim.CreatedAt, created[i].CreatedAt) ||
			(claim.LapsedAt.Sub(claim.CreatedAt)-short).Abs() > slack ||
			(claim.ExpiresAt.Sub(claim.CreatedAt)-long).Abs() > slack {
			p.broken("a claim created %s with a lease of %s and a TTL of %s is listed as created %s, lapsed %s, expiring %s",
				created[i].CreatedAt, short, long, claim.CreatedAt, claim.LapsedAt, claim.ExpiresAt)
		}
	}
	if got := p.stuck(2); len(got) != 2 || got[0].Key != lapsed[0].Key || got[1].Key != lapsed[1].Key {
		p.broken("with limit 2 Stuck lists %+v; want the two oldest", got)
	}
}

func settled(resp *idempotency.Response) operation {
	return operation{"Resolve", func(s idempotency.Store, ctx context.Context, c idempotency.Claim) error {
		return s.(resolver).Resolve(ctx, c.Key, c.Token, resp)
	}}
}

func resolve(p *probe) {
	p.resolver()
	decided := answer("decided")
	recording, freeing := settled(&decided), settled(nil)

	for _, op := range []operation{recording, freeing} {
		c := p.claim()
		p.lost(op, c, "on a key without a record")
		p.expect(c, idempotency.Acquired, "on a fresh key")
		p.lost(op, c, "on a live claim")
		p.must(complete(answer("done")), c, "for the owner")
		p.lost(op, c, "on a completed record")
		p.replays(c, answer("done"), "after a refused Resolve")
	}

	recorded, freed, revived, taken := p.claim(), p.claim(), p.claim(), p.claim()
	for _, c := range []*idempotency.Claim{&recorded, &freed, &revived, &taken} {
		c.Lease = short
		p.expect(*c, idempotency.Acquired, "on a fresh key")
	}
	sleepPast(time.Now(), short)
	revived.Lease = long
	p.must(extend, revived, "for the owner of a lapsed claim")
	successor := rerun(taken)
	p.expect(successor, idempotency.Acquired, "taking over a lapsed claim")
	for _, op := range []operation{recording, freeing} {
		p.lost(op, retry(recorded), "with another token")
		p.expect(retry(recorded), idempotency.Interrupted, "after a refused Resolve")
		p.lost(op, revived, "on a claim that came alive again")
		p.expect(rerun(revived), idempotency.InFlight, "after a refused Resolve")
		p.lost(op, taken, "on a claim that was taken over")
		p.expect(rerun(taken), idempotency.InFlight, "after a refused Resolve")
	}

	p.must(recording, recorded, "on an interrupted claim")
	p.replays(recorded, decided, "after Resolve")
	for _, op := range []operation{recording, freeing, extend, release, complete(answer("late"))} {
		p.lost(op, recorded, "with the token of a claim that was resolved")
	}
	p.replays(recorded, decided, "after the late attempt was refused")

	p.must(freeing, freed, "on an interrupted claim")
	if rec := p.expect(differentRequest(freed), idempotency.Acquired, "after Resolve with nil"); rec.Attempt != 1 {
		p.broken("after Resolve with nil the next attempt is number %d; want 1", rec.Attempt)
	}
	for _, op := range []operation{recording, freeing, extend, release, complete(answer("late"))} {
		p.lost(op, freed, "with the token of a claim that was freed")
	}
}
