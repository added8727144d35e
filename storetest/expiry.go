package storetest

import (
	"math"
	"time"

	"github.com/seed-2d1e5f61/idempotency"
)

var expiryChecks = []check{
	{
		"Expiry",
		"after its TTL a record is as good as none, and the key starts anew with attempt 1",
		"keys stay taken for ever, and storage grows without end",
		expiry,
	},
	{
		"CompleteKeepsExpiry",
		"Complete does not move the expiry of a record that has not expired",
		"how long a key is kept depends on how long its handler took",
		completeKeepsExpiry,
	},
	{
		"ZombieAcrossExpiry",
		"the token of a dead record owns nothing, neither before nor after the key is reserved again",
		"an attempt from before the expiry completes or frees its successor's claim",
		zombieAcrossExpiry,
	},
	{
		"LiveLeaseOutlivesTTL",
		"a record does not expire under a live lease",
		"a handler that runs for longer than the TTL is run a second time beside itself",
		liveLeaseOutlivesTTL,
	},
	{
		"RunPastTTL",
		"the outcome of a run that ended after its TTL is kept for one more TTL, from then",
		"the retry of a request that took long finds no record, and charges again",
		runPastTTL,
	},
	{
		"LongestTTL",
		"a TTL and a lease of the longest Duration do not end",
		"records that are to be kept for good are forgotten at once, and every retry charges again",
		longestTTL,
	},
}

// differentRequest is a request that only a key without a record lets in.
func differentRequest(c idempotency.Claim) idempotency.Claim {
	c = retry(c)
	c.Fingerprint = idempotency.Fingerprint{9}
	return c
}

func expiry(p *probe) {
	completed, interrupted := p.claim(), p.claim()
	completed.TTL = 2 * short
	interrupted.TTL, interrupted.Lease = 2*short, short
	first := p.expect(completed, idempotency.Acquired, "on a fresh key")
	p.must(complete(answer("old")), completed, "for the owner")
	p.expect(interrupted, idempotency.Acquired, "on a fresh key")
	sleepPast(time.Now(), 2*short)

	for _, c := range []idempotency.Claim{completed, interrupted} {
		next := differentRequest(c)
		rec := p.expect(next, idempotency.Acquired, "after the TTL")
		if rec.Attempt != 1 || rec.Fingerprint != next.Fingerprint {
			p.broken("after the TTL the record is of attempt %d and fingerprint %x; want 1 and the new request's, %x",
				rec.Attempt, rec.Fingerprint, next.Fingerprint)
		}
		if rec.CreatedAt.Sub(first.CreatedAt) < 2*short-slack {
			p.broken("after a TTL of %s CreatedAt has moved from %s to %s",
				2*short, first.CreatedAt, rec.CreatedAt)
		}
		p.expect(retry(next), idempotency.InFlight, "for a duplicate of a claim over a dead record")
		p.must(complete(answer("new")), next, "for the owner of a claim over a dead record")
		p.replays(next, answer("new"), "after the claim over a dead record completed")
	}
}

func completeKeepsExpiry(p *probe) {
	p.inTime(func(unit time.Duration) bool {
		c := p.claim()
		c.TTL = unit
		begin := time.Now()
		p.expect(c, idempotency.Acquired, "on a fresh key")
		begun := time.Now()
		time.Sleep(unit / 2)
		completing := time.Now()
		p.must(complete(answer("done")), c, "for the owner")
		if !surely(begin, unit) {
			return false
		}
		sleepPast(begun, unit)
		rec := p.reserve(differentRequest(c))
		if rec.State != idempotency.Acquired {
			p.broken("after the TTL of a record that was completed halfway, Reserve says %s; want Acquired",
				nameOf(rec.State))
		}
		return surely(completing, unit) // later, a moved expiry would be over as well
	})
}

func zombieAcrossExpiry(p *probe) {
	for _, op := range []operation{extend, complete(answer("zombie")), release} {
		c := p.claim()
		c.Lease, c.TTL = short/2, short
		p.expect(c, idempotency.Acquired, "on a fresh key")
		sleepPast(time.Now(), short)
		c.Lease, c.TTL = long, long
		p.lost(op, c, "with the token of a dead record")

		next := differentRequest(c)
		p.expect(next, idempotency.Acquired, "after the TTL")
		p.lost(op, c, "with a token from before the expiry, on its successor's claim")
		p.expect(retry(next), idempotency.InFlight, "after the zombie's refused "+op.name)
		if rec := p.reserve(c); rec.State == idempotency.Acquired {
			p.broken("a token from before the expiry acquires its successor's claim")
		}
		p.must(complete(answer("next")), next, "for the successor")
		p.lost(op, c, "with a token from before the expiry, on its successor's record")
		p.replays(next, answer("next"), "after the zombie's refused "+op.name)
	}
}

func liveLeaseOutlivesTTL(p *probe) {
	c := p.claim()
	c.TTL = short
	p.expect(c, idempotency.Acquired, "on a fresh key")
	sleepPast(time.Now(), short)
	p.expect(rerun(c), idempotency.InFlight, "after the TTL, under a live lease")
	p.expect(differentRequest(c), idempotency.InFlight, "after the TTL, under a live lease")
	p.must(extend, c, "for an owner whose lease outlived the TTL")
	p.expect(rerun(c), idempotency.InFlight, "after Extend past the TTL")
	p.must(release, c, "for an owner whose lease outlived the TTL")
	p.expect(retry(c), idempotency.Acquired, "after Release past the TTL")
}

func runPastTTL(p *probe) {
	p.inTime(func(unit time.Duration) bool {
		c := p.claim()
		c.TTL = unit
		p.expect(c, idempotency.Acquired, "on a fresh key")
		sleepPast(time.Now(), unit)
		completing := time.Now()
		p.must(complete(answer("late")), c, "for a run that ends after its TTL")
		completed := time.Now()
		rec := p.reserve(differentRequest(c))
		if !surely(completing, unit) {
			return false
		}
		if rec.State != idempotency.Completed {
			p.broken("after a run that ended past its TTL, Reserve says %s; want Completed", nameOf(rec.State))
		}
		sleepPast(completed, unit)
		p.expect(differentRequest(c), idempotency.Acquired, "one more TTL after a run that ended past its own")
		return true
	})
}

func longestTTL(p *probe) {
	c := p.claim()
	c.TTL = math.MaxInt64
	p.expect(c, idempotency.Acquired, "on a fresh key")
	p.must(complete(answer("kept")), c, "for the owner of a claim with the longest TTL")
	p.replays(c, answer("kept"), "after Complete under the longest TTL")

	c = p.claim()
	c.Lease, c.TTL = math.MaxInt64, math.MaxInt64
	p.expect(c, idempotency.Acquired, "on a fresh key")
	for _, when := range []string{"after Reserve with the longest lease", "after Extend by the longest lease"} {
		if rec := p.expect(retry(c), idempotency.InFlight, when); rec.LeaseLeft <= 0 {
			p.broken("%s, %s of it are left", when, rec.LeaseLeft)
		}
		p.must(extend, c, "for the owner of the longest lease")
	}
}
