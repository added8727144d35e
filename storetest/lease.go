package storetest

import (
	"time"

	"github.com/seed-2d1e5f61/idempotency"
)

var leaseChecks = []check{
	{
		"LeaseLeft",
		"LeaseLeft is what is left of the live claim's lease",
		"clients are told to come back too early or far too late",
		leaseLeft,
	},
	{
		"ExtendRenews",
		"Extend starts the lease anew, from now",
		"a handler that takes longer than its lease is run a second time beside itself",
		extendRenews,
	},
	{
		"OthersLeaseStays",
		"a Reserve never moves the lease of someone else's claim",
		"clients that retry keep a dead attempt's key locked, or end a live one's lease",
		othersLeaseStays,
	},
	{
		"Takeover",
		"a lapsed claim is Interrupted, and only a claim with Rerun takes it over, as the next attempt",
		"an operation whose outcome nobody knows is run again unasked, or never again",
		takeover,
	},
	{
		"TakeoverFingerprint",
		"only a request with the fingerprint of the first takes over",
		"another request under the same key runs in place of the one that crashed",
		takeoverFingerprint,
	},
	{
		"TakeoverKeepsExpiry",
		"a takeover keeps CreatedAt and the expiry of the first reservation",
		"an operation that crashes each time is tried for ever",
		takeoverKeepsExpiry,
	},
}

func leaseLeft(p *probe) {
	c := p.claim()
	c.Lease = time.Minute
	earliest := time.Now()
	rec := p.expect(c, idempotency.Acquired, "on a fresh key")
	latest := time.Now()
	// What was begun between two instants and is asked for between two others has a
	// lease left within these bounds, however slow the machine is.
	within := func(left time.Duration, since, until time.Time, whose string) {
		p.Helper()
		least, most := c.Lease-time.Since(since)-slack, c.Lease-time.Since(until)+slack
		if left < least || left > max(most, slack) {
			p.broken("%s is told that %s are left; want about %s", whose, left, (least+most)/2)
		}
	}
	within(rec.LeaseLeft, earliest, time.Now(), "the owner")
	time.Sleep(2 * slack)
	asked := time.Now()
	rec = p.expect(retry(c), idempotency.InFlight, "for another token")
	within(rec.LeaseLeft, earliest, latest.Add(time.Since(asked)), "a duplicate")
}

func extendRenews(p *probe) {
	c := p.claim()
	c.Lease = short
	p.expect(c, idempotency.Acquired, "on a fresh key")
	start := time.Now()
	c.Lease = long
	p.must(extend, c, "for the owner")
	sleepPast(start, short)
	p.expect(rerun(c), idempotency.InFlight, "after the first lease would be over, but for Extend")

	c.Lease = short
	p.must(extend, c, "for the owner")
	sleepPast(time.Now(), short)
	p.expect(retry(c), idempotency.Interrupted, "after the lease that Extend began")
}

func othersLeaseStays(p *probe) {
	hasty := p.claim()
	p.expect(hasty, idempotency.Acquired, "on a fresh key")
	duplicate := rerun(hasty)
	duplicate.Lease, duplicate.TTL = time.Millisecond, time.Millisecond
	p.expect(duplicate, idempotency.InFlight, "for a duplicate with a lease of its own")
	time.Sleep(2 * slack)
	p.expect(rerun(hasty), idempotency.InFlight, "after the duplicate's lease would be over")

	p.inTime(func(unit time.Duration) bool {
		c := p.claim()
		c.Lease = unit
		begin := time.Now()
		p.expect(c, idempotency.Acquired, "on a fresh key")
		begun := time.Now()
		rec := p.reserve(retry(c))
		if !surely(begin, unit) {
			return false
		}
		if rec.State != idempotency.InFlight {
			p.broken("for a duplicate, Reserve says %s; want InFlight", nameOf(rec.State))
		}
		sleepPast(begun, unit)
		p.expect(retry(c), idempotency.Interrupted, "after the lease of a claim that a duplicate had asked for")
		p.expect(retry(c), idempotency.Interrupted, "asked once more")
		return true
	})
}

func takeover(p *probe) {
	c := p.claim()
	c.Lease = short
	first := p.expect(c, idempotency.Acquired, "on a fresh key")
	sleepPast(time.Now(), short)
	if rec := p.expect(retry(c), idempotency.Interrupted, "without Rerun, after the lease"); rec.Attempt != 1 {
		p.broken("the interrupted record is of attempt %d; want 1", rec.Attempt)
	}
	for attempt := 2; attempt <= 3; attempt++ {
		c = rerun(c)
		c.Lease = short
		rec := p.expect(c, idempotency.Acquired, "with Rerun, after the lease")
		sleepPast(time.Now(), short)
		if rec.Attempt != attempt {
			p.broken("takeover number %d is attempt %d; want %d", attempt-1, rec.Attempt, attempt)
		}
		if !sameInstant(rec.CreatedAt, first.CreatedAt) {
			p.broken("the takeover changed CreatedAt from %s to %s", first.CreatedAt, rec.CreatedAt)
		}
	}
	c = rerun(c)
	p.expect(c, idempotency.Acquired, "with Rerun, after the lease of a takeover")
	p.expect(rerun(c), idempotency.InFlight, "for a duplicate of a takeover")
	p.must(complete(answer("fourth")), c, "for the last attempt")
	p.replays(c, answer("fourth"), "after the last attempt completed")
	if rec := p.reserve(retry(c)); rec.Attempt != 4 || !sameInstant(rec.CreatedAt, first.CreatedAt) {
		p.broken("the completed record is of attempt %d, created %s; want 4, %s",
			rec.Attempt, rec.CreatedAt, first.CreatedAt)
	}
}

func takeoverFingerprint(p *probe) {
	c := p.lapsed()
	other := rerun(c)
	other.Fingerprint = idempotency.Fingerprint{9}
	rec := p.expect(other, idempotency.Interrupted, "with Rerun, for another fingerprint")
	if rec.Fingerprint != c.Fingerprint || rec.Attempt != 1 {
		p.broken("another fingerprint is told %x, attempt %d; want the first's, %x, 1",
			rec.Fingerprint, rec.Attempt, c.Fingerprint)
	}
	p.lost(complete(answer("other")), other, "for another fingerprint, which was refused")
	p.expect(rerun(c), idempotency.Acquired, "with Rerun, for the first fingerprint")
}

func takeoverKeepsExpiry(p *probe) {
	p.inTime(func(unit time.Duration) bool {
		c := p.claim()
		c.Lease, c.TTL = unit/6, unit
		begin := time.Now()
		p.expect(c, idempotency.Acquired, "on a fresh key")
		begun := time.Now()
		sleepPast(begun, c.Lease)

		second := rerun(c)
		second.Lease = c.Lease
		rec := p.reserve(second)
		if !surely(begin, unit) {
			return false
		}
		if rec.State != idempotency.Acquired || rec.Attempt != 2 {
			p.broken("taking over a lapsed claim, Reserve says %s, attempt %d; want Acquired, 2",
				nameOf(rec.State), rec.Attempt)
		}
		taken := time.Now()
		sleepPast(begun, unit)
		sleepPast(taken, second.Lease)
		rec = p.expect(retry(c), idempotency.Acquired, "after the TTL of a claim that was taken over")
		if rec.Attempt != 1 {
			p.broken("after the TTL of a claim that was taken over the next attempt is number %d; want 1", rec.Attempt)
		}
		return true
	})
}
