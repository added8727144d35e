package storetest

import (
	"context"
	"errors"
	"time"

	"github.com/seed-2d1e5f61/idempotency"
)

var contextChecks = []check{
	{
		"EndedContext",
		"a call whose context has ended gives an error or a true answer, and the token can repeat it",
		"after a client that left, its key is taken by nobody and free for nobody",
		endedContext,
	},
	{
		"CancelledMidway",
		"a Reserve that was cancelled halfway leaves nothing that its token cannot release",
		"after a client that left, its key is taken by nobody and free for nobody",
		cancelledMidway,
	},
}

// with runs op on a context of its own.
func with(ctx context.Context, op operation) operation {
	return operation{op.name, func(s idempotency.Store, _ context.Context, c idempotency.Claim) error {
		return op.call(s, ctx, c)
	}}
}

// canBeFreed wants a key that c's token owns, or nobody, to be free after Release. A call
// that was given up may still be on its way and take effect behind the Release, so that
// is repeated for a while.
func (p *probe) canBeFreed(c idempotency.Claim, when string) {
	p.Helper()
	for start := time.Now(); ; time.Sleep(slack) {
		if err := p.do(release, c); err != nil && !errors.Is(err, idempotency.ErrClaimLost) {
			p.broken("%s, Release says %v; want no error, or ErrClaimLost", when, err)
		}
		state := p.reserve(retry(c)).State
		if state == idempotency.Acquired {
			return
		}
		if time.Since(start) > limit/4 {
			p.broken("%s, and Release with the same token, Reserve says %s; want Acquired", when, nameOf(state))
		}
	}
}

func endedContext(p *probe) {
	ended, cancel := context.WithCancel(p.ctx)
	cancel()
	reserve := operation{"Reserve", func(s idempotency.Store, _ context.Context, c idempotency.Claim) error {
		rec, err := s.Reserve(ended, c)
		if err == nil && rec.State != idempotency.Acquired {
			p.Errorf("with an ended context, on a fresh key, Reserve says %s", nameOf(rec.State))
		}
		return err
	}}

	c := p.claim()
	_ = p.do(reserve, c)
	p.canBeFreed(c, "after a Reserve with an ended context")

	c = p.claim()
	_ = p.do(reserve, c)
	p.expect(c, idempotency.Acquired, "after a Reserve with an ended context and the same token")

	extended, completed, released := c, p.claim(), p.claim()
	for _, c := range []idempotency.Claim{completed, released} {
		p.expect(c, idempotency.Acquired, "on a fresh key")
	}
	_ = p.do(with(ended, extend), extended)
	p.expect(retry(extended), idempotency.InFlight, "after an Extend with an ended context")
	p.must(extend, extended, "repeated after an ended context")

	if err := p.do(with(ended, complete(answer("done"))), completed); err == nil {
		p.replays(completed, answer("done"), "after a Complete that succeeded on an ended context")
	}
	p.must(complete(answer("done")), completed, "repeated after an ended context")
	p.replays(completed, answer("done"), "after Complete")

	if err := p.do(with(ended, release), released); err == nil {
		p.expect(retry(released), idempotency.Acquired, "after a Release that succeeded on an ended context")
	} else {
		p.canBeFreed(released, "after a Release with an ended context")
	}
}

// cancelledMidway cancels at moments spread over the time that a call may take.
func cancelledMidway(p *probe) {
	for i := range 24 {
		c := p.claim()
		ctx, cancel := context.WithTimeout(p.ctx, time.Duration(i)*50*time.Microsecond)
		err := p.do(operation{"Reserve", func(s idempotency.Store, _ context.Context, c idempotency.Claim) error {
			rec, err := s.Reserve(ctx, c)
			if err == nil && rec.State != idempotency.Acquired {
				p.Errorf("on a fresh key, Reserve says %s", nameOf(rec.State))
			}
			return err
		}}, c)
		cancel()
		if errors.Is(err, idempotency.ErrClaimLost) {
			p.broken("Reserve with a context that ends says ErrClaimLost, which is no answer to it")
		}
		if i%2 == 0 {
			p.canBeFreed(c, "after a Reserve that was cancelled halfway")
			continue
		}
		p.expect(c, idempotency.Acquired, "after a Reserve that was cancelled halfway, repeated")
		p.must(complete(answer("done")), c, "for the owner")
		p.replays(c, answer("done"), "after Complete")
	}
}
