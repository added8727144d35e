package storetest

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-2d1e5f61/idempotency"
)

var ownerChecks = []check{
	{
		"OneOwner",
		"of all who reserve a key at once, one acquires it, and the others are told that it is in flight",
		"with two owners the handler runs twice, and a customer is charged twice",
		oneOwner,
	},
	{
		"OneOwnerAfterCrash",
		"of all who take over an interrupted claim at once, one acquires it",
		"with two owners the handler runs twice, and a customer is charged twice",
		oneOwnerAfterCrash,
	},
	{
		"OneOwnerAfterExpiry",
		"of all who reserve over a dead record at once, one acquires it",
		"with two owners the handler runs twice, and a customer is charged twice",
		oneOwnerAfterExpiry,
	},
	{
		"MutualExclusion",
		"while a key is reserved, released and completed again and again, it never has two owners",
		"two handlers run at the same time for one operation",
		mutualExclusion,
	},
	{
		"RepeatedToken",
		"a token that reserves again gets the same answer again",
		"after a lost reply the client's own claim keeps it out, and nothing runs until the lease ends",
		repeatedToken,
	},
	{
		"Fingerprint",
		"in every state a Record carries the fingerprint of the first request",
		"another request under the same key cannot be recognised, and is answered with a stranger's response",
		fingerprint,
	},
}

const (
	racers = 200
	rounds = 3
)

// oneAcquires lets racers loose on c's key.
func (p *probe) oneAcquires(c idempotency.Claim, attempt int) {
	p.Helper()
	claims := make([]idempotency.Claim, racers)
	for i := range claims {
		claims[i] = rerun(c)
	}
	acquired := 0
	for i, rec := range p.race(claims) {
		switch rec.State {
		case idempotency.Acquired:
			acquired++
			c = claims[i]
		case idempotency.InFlight:
		default:
			p.broken("a loser is told %s; want InFlight", nameOf(rec.State))
		}
		if rec.Attempt != attempt {
			p.broken("%s says attempt %d; want %d", nameOf(rec.State), rec.Attempt, attempt)
		}
	}
	if acquired != 1 {
		p.broken("%d of %d acquired the key", acquired, racers)
	}
	p.must(complete(answer("winner")), c, "for the one that acquired the key")
	p.replays(c, answer("winner"), "after the winner completed")
}

func oneOwner(p *probe) {
	for range rounds {
		p.oneAcquires(p.claim(), 1)
	}
}

// lapsed returns a claim whose lease is over and whose TTL is not.
func (p *probe) lapsed() idempotency.Claim {
	p.Helper()
	c := p.claim()
	c.Lease = short
	p.expect(c, idempotency.Acquired, "on a fresh key")
	sleepPast(time.Now(), short)
	return c
}

func oneOwnerAfterCrash(p *probe) {
	for range rounds {
		p.oneAcquires(p.lapsed(), 2)
	}
}

func oneOwnerAfterExpiry(p *probe) {
	for range rounds {
		c := p.claim()
		c.TTL = short
		p.expect(c, idempotency.Acquired, "on a fresh key")
		p.must(complete(answer("old")), c, "for the owner")
		sleepPast(time.Now(), short)
		p.oneAcquires(c, 1)
	}
}

func mutualExclusion(p *probe) {
	const workers, keys, turns = 24, 4, 20
	var claims [keys]idempotency.Claim
	for i := range claims {
		claims[i] = p.claim()
	}
	var owners, acquired [keys]atomic.Int64
	var doubles, strays atomic.Int64
	var firstErr atomic.Pointer[error]
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for turn := range turns {
				k := (w + turn) % keys
				c := rerun(claims[k])
				rec, err := p.store.Reserve(p.ctx, c)
				switch {
				case err != nil:
					firstErr.CompareAndSwap(nil, &err)
					return
				case rec.State == idempotency.Acquired:
					acquired[k].Add(1)
					if owners[k].Add(1) != 1 {
						doubles.Add(1)
					}
					time.Sleep(time.Millisecond)
					owners[k].Add(-1)
					if err := p.store.Release(p.ctx, c); err != nil {
						firstErr.CompareAndSwap(nil, &err)
					}
				case rec.State != idempotency.InFlight:
					strays.Add(1)
				}
			}
		})
	}
	_ = p.call("Reserve or Release", func(context.Context) error { wg.Wait(); return nil })
	if n := doubles.Load(); n > 0 {
		p.broken("%d times a key was acquired while another attempt had it", n)
	}
	if err := firstErr.Load(); err != nil {
		p.broken("an owner that reserves and releases is told %v", *err)
	}
	if n := strays.Load(); n > 0 {
		p.broken("%d times a live claim was reported as something else than InFlight", n)
	}
	for k := range claims {
		if acquired[k].Load() == 0 {
			p.broken("key %d was acquired by nobody", k)
		}
		p.expect(claims[k], idempotency.Acquired, "after the last owner released the key")
	}
}

func repeatedToken(p *probe) {
	c := p.claim()
	claims := make([]idempotency.Claim, 20)
	for i := range claims {
		claims[i] = c
	}
	first := p.expect(c, idempotency.Acquired, "on a fresh key")
	for _, rec := range append(p.race(claims), p.reserve(c)) {
		if rec.State != idempotency.Acquired || rec.Attempt != 1 || !sameInstant(rec.CreatedAt, first.CreatedAt) {
			p.broken("asked again, Reserve says %s, attempt %d, created %s; want Acquired, 1, %s",
				nameOf(rec.State), rec.Attempt, rec.CreatedAt, first.CreatedAt)
		}
	}
	p.expect(retry(c), idempotency.InFlight, "for another token")

	p.must(complete(answer("done")), c, "for the owner")
	rec := p.expect(c, idempotency.Completed, "for the token that completed")
	if diff := difference(rec.Response, answer("done")); diff != "" {
		p.broken("for the token that completed, the recorded %s", diff)
	}

	// While nobody took over, a lapsed claim is still its owner's.
	d := p.lapsed()
	d.Lease = long
	p.expect(d, idempotency.Acquired, "for the owner of a lapsed claim")
	p.expect(rerun(d), idempotency.InFlight, "after the owner reserved again with another lease")
}

// sameInstant allows for a store that rounds.
func sameInstant(a, b time.Time) bool { return a.Sub(b).Abs() < 5*time.Millisecond }

func fingerprint(p *probe) {
	see := func(c idempotency.Claim, state idempotency.State) {
		p.Helper()
		other := rerun(c)
		other.Fingerprint = idempotency.Fingerprint{9}
		rec := p.expect(other, state, "for another fingerprint")
		if rec.Fingerprint != c.Fingerprint {
			p.broken("in state %s the fingerprint is %x; want the first request's, %x",
				nameOf(state), rec.Fingerprint, c.Fingerprint)
		}
		if again := p.expect(retry(c), state, "after another fingerprint asked"); again.Fingerprint != c.Fingerprint {
			p.broken("in state %s a request with another fingerprint replaced the first's", nameOf(state))
		}
	}
	c := p.claim()
	if rec := p.expect(c, idempotency.Acquired, "on a fresh key"); rec.Fingerprint != c.Fingerprint {
		p.broken("the owner is told the fingerprint %x; want its own, %x", rec.Fingerprint, c.Fingerprint)
	}
	see(c, idempotency.InFlight)
	see(p.lapsed(), idempotency.Interrupted)
	p.must(complete(answer("done")), c, "for the owner")
	see(c, idempotency.Completed)
	p.replays(c, answer("done"), "after another fingerprint asked")
}
