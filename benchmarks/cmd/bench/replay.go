package main

import (
	"context"
	"math/rand/v2"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/seed-2d1e5f61/idempotency"
	"github.com/seed-2d1e5f61/idempotency/benchmarks/internal/load"
	"github.com/seed-2d1e5f61/idempotency/benchmarks/internal/measure"
)

func (p *postgres) replay(h http.Handler) func(context.Context, time.Duration, int) (measure.Sample, error) {
	pool := clients(h)
	send := func(key string) error {
		client := pool.Get().(*load.Client)
		defer pool.Put(client)
		return client.Expect(key, true)
	}
	return func(ctx context.Context, d time.Duration, callers int) (measure.Sample, error) {
		// What the cases before have driven out of the server's memory is not this one's cost.
		for _, key := range p.replayed {
			if err := send(key); err != nil {
				return measure.Sample{}, err
			}
		}
		return together(ctx, d, callers, func() error { return send(p.replayed[rand.N(len(p.replayed))]) })
	}
}

// selectOne is the floor of a replay: one indexed SELECT of such a row by the pool.
func (p *postgres) selectOne(ctx context.Context, d time.Duration, callers int) (measure.Sample, error) {
	return together(ctx, d, callers, func() error {
		var header, body []byte
		return p.pool.QueryRow(ctx, "SELECT header, body FROM common WHERE id = $1::uuid", p.ids[rand.N(len(p.ids))]).Scan(&header, &body)
	})
}

// replayElsewhere replays keys that were recorded by another process, each once: a new
// store knows nothing of them.
func (p *postgres) replayElsewhere(ctx context.Context, d time.Duration, callers int) (measure.Sample, error) {
	if p.elsewhere == 0 {
		if err := p.recordElsewhere(ctx); err != nil {
			return measure.Sample{}, err
		}
	}
	store, err := idempotency.NewPostgresStore(p.pool, idempotency.PostgresConfig{Table: "common"})
	if err != nil {
		return measure.Sample{}, err
	}
	h, err := load.Middleware(store, load.Handler)
	if err != nil {
		return measure.Sample{}, err
	}
	return together(ctx, d, callers, p.eachElsewhere(h, true))
}

// eachElsewhere sends every one of elsewhereKeys once.
func (p *postgres) eachElsewhere(h http.Handler, wantReplay bool) func() error {
	pool := clients(h)
	var next atomic.Uint64
	return func() error {
		n := next.Add(1) - 1
		if n >= elsewhereKeys {
			return errNoMore
		}
		client := pool.Get().(*load.Client)
		defer pool.Put(client)
		return client.Expect(load.Key(p.elsewhere+n), wantReplay)
	}
}

// elsewhereKeys are enough for some seconds; a longer case ends with them.
const elsewhereKeys = 50_000

func (p *postgres) recordElsewhere(ctx context.Context) error {
	p.elsewhere = load.Reserve(elsewhereKeys)
	_, err := together(ctx, time.Hour, 4*connections, p.eachElsewhere(p.grouped, false))
	return err
}
