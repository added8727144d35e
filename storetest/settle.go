package storetest

import (
	"time"

	"github.com/seed-2d1e5f61/idempotency"
)

var settleChecks = []check{
	{
		"FenceExtend",
		"Extend is ErrClaimLost, and changes nothing, unless the token owns the key",
		"an attempt that lost its key goes on beside its successor, or keeps the key from everyone",
		func(p *probe) { fence(p, extend) },
	},
	{
		"FenceComplete",
		"Complete is ErrClaimLost, and changes nothing, unless the token owns the key",
		"an attempt that stalled overwrites the outcome of its successor, and the client is told the wrong one",
		func(p *probe) { fence(p, complete(answer("stale"))) },
	},
	{
		"FenceRelease",
		"Release is ErrClaimLost, and changes nothing, unless the token owns the key",
		"an attempt that stalled frees the key under its successor, and a third attempt charges again",
		func(p *probe) { fence(p, release) },
	},
	{
		"CompleteIsFinal",
		"once completed, a record keeps its first response; its token may repeat Complete, and no more",
		"two retries of one request get two different answers",
		completeIsFinal,
	},
	{
		"Release",
		"Release frees the key as if it had never been reserved; a second Release is ErrClaimLost",
		"a request that did nothing blocks its own retry",
		releaseFrees,
	},
	{
		"LateOwner",
		"a lapsed claim that nobody took is still its owner's, to extend, complete or release",
		"work that took a little longer than its lease is not recorded, and is done again",
		lateOwner,
	},
}

// fence tries op with every token that owns nothing.
func fence(p *probe, op operation) {
	c := p.claim()
	p.lost(op, c, "on a key without a record")
	p.expect(retry(c), idempotency.Acquired, "after "+op.name+" on a key without a record")

	c = p.claim()
	p.expect(c, idempotency.Acquired, "on a fresh key")
	elsewhere := p.claim()
	elsewhere.Token = c.Token
	p.lost(op, elsewhere, "with the token of another key's claim")
	p.lost(op, retry(c), "with another token on a live claim")
	p.expect(retry(c), idempotency.InFlight, "after a refused "+op.name)
	p.must(complete(answer("owner")), c, "for the owner, after another's refused "+op.name)
	p.lost(op, retry(c), "with another token on a completed record")
	p.replays(c, answer("owner"), "after a refused "+op.name)

	c = p.claim()
	p.expect(c, idempotency.Acquired, "on a fresh key")
	p.must(release, c, "for the owner")
	next := retry(c)
	p.expect(next, idempotency.Acquired, "after Release")
	p.lost(op, c, "with a released token, on its successor's claim")
	p.must(complete(answer("next")), next, "for the owner, after a refused "+op.name)
	p.replays(c, answer("next"), "after a refused "+op.name)

	fenceLapsed(p, op)
}

// fenceLapsed tries op around a takeover.
func fenceLapsed(p *probe, op operation) {
	stale, untaken := p.claim(), p.claim()
	stale.Lease, untaken.Lease = short, short
	p.expect(stale, idempotency.Acquired, "on a fresh key")
	p.expect(untaken, idempotency.Acquired, "on a fresh key")
	sleepPast(time.Now(), short)

	p.lost(op, retry(untaken), "with another token on a lapsed claim")
	p.expect(retry(untaken), idempotency.Interrupted, "after a refused "+op.name+" on a lapsed claim")

	successor := rerun(stale)
	p.expect(successor, idempotency.Acquired, "taking over a lapsed claim")
	stale.Lease = long
	p.lost(op, stale, "with the token of the attempt that was taken over")
	rec := p.expect(retry(stale), idempotency.InFlight, "after the stale owner's refused "+op.name)
	if rec.Attempt != 2 {
		p.broken("after the stale owner's refused %s the record is of attempt %d; want 2", op.name, rec.Attempt)
	}
	p.must(complete(answer("successor")), successor, "for the successor")
	p.lost(op, stale, "with the token of the attempt before the one that completed")
	p.replays(stale, answer("successor"), "after the stale owner's refused "+op.name)
}

func completeIsFinal(p *probe) {
	c := p.claim()
	c.Lease = short
	p.expect(c, idempotency.Acquired, "on a fresh key")
	start := time.Now()
	p.must(complete(answer("first")), c, "for the owner")
	p.must(complete(answer("first")), c, "repeated")
	p.must(complete(answer("second")), c, "repeated with another response")
	p.replays(c, answer("first"), "after Complete was repeated")

	p.lost(extend, c, "after Complete")
	p.lost(release, c, "after Complete")
	p.lost(complete(answer("third")), rerun(c), "by another token after Complete")
	p.replays(c, answer("first"), "after others tried to change it")

	sleepPast(start, short)
	rec := p.expect(rerun(c), idempotency.Completed, "after the lease of the completed attempt would be over")
	if rec.Attempt != 1 {
		p.broken("the completed record is of attempt %d; want 1", rec.Attempt)
	}
	p.replays(c, answer("first"), "after the lease of the completed attempt would be over")
}

func releaseFrees(p *probe) {
	c := p.claim()
	p.expect(c, idempotency.Acquired, "on a fresh key")
	p.must(release, c, "for the owner")
	p.lost(release, c, "repeated")
	p.lost(extend, c, "after Release")
	p.lost(complete(answer("late")), c, "after Release")

	other := retry(c)
	other.Fingerprint = idempotency.Fingerprint{9}
	rec := p.expect(other, idempotency.Acquired, "after Release")
	if rec.Attempt != 1 || rec.Fingerprint != other.Fingerprint {
		p.broken("after Release the record is of attempt %d and fingerprint %x; want 1 and the new request's, %x",
			rec.Attempt, rec.Fingerprint, other.Fingerprint)
	}

	// Nor does anything of an earlier attempt stay behind.
	c = p.lapsed()
	second := rerun(c)
	p.expect(second, idempotency.Acquired, "taking over a lapsed claim")
	p.must(release, second, "for the attempt that took over")
	if rec := p.expect(retry(c), idempotency.Acquired, "after Release"); rec.Attempt != 1 {
		p.broken("after the second attempt's Release the next is number %d; want 1", rec.Attempt)
	}
}

func lateOwner(p *probe) {
	var claims [3]idempotency.Claim
	for i := range claims {
		claims[i] = p.claim()
		claims[i].Lease = short
		p.expect(claims[i], idempotency.Acquired, "on a fresh key")
	}
	sleepPast(time.Now(), short)
	for i := range claims {
		p.expect(retry(claims[i]), idempotency.Interrupted, "after the lease")
		claims[i].Lease = long
	}
	p.must(extend, claims[0], "for the owner of a lapsed claim")
	p.expect(rerun(claims[0]), idempotency.InFlight, "after the late owner's Extend")
	p.must(complete(answer("late")), claims[0], "for the late owner")
	p.replays(claims[0], answer("late"), "after the late owner's Complete")

	p.must(complete(answer("late")), claims[1], "for the owner of a lapsed claim")
	p.replays(claims[1], answer("late"), "after the late owner's Complete")

	p.must(release, claims[2], "for the owner of a lapsed claim")
	p.expect(retry(claims[2]), idempotency.Acquired, "after the late owner's Release")
}
