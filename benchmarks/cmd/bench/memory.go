package main

import (
	"context"
	"fmt"
	"runtime"
	"strconv"
	"time"

	"github.com/seed-2d1e5f61/idempotency"
	"github.com/seed-2d1e5f61/idempotency/benchmarks/internal/load"
	"github.com/seed-2d1e5f61/idempotency/benchmarks/internal/measure"
)

// post sends one request and fails on an answer that is not the expected one.
type post func(key string, wantReplay bool) error

// implementation is a middleware with a store in memory, and the handler that it wraps.
type implementation struct {
	name string
	// open returns what sends requests to the handler, behind the middleware with an empty
	// store or bare, and what frees it.
	open func(protected bool) (post, func(), error)
}

var implementations = []implementation{
	{"idempotency", openOurs},
	{"fiber-v2", openFiber2},
	{"fiber-v3", openFiber3},
}

func openOurs(protected bool) (post, func(), error) {
	handler, close := load.Handler, func() {}
	if !protected {
		return load.NewClient(handler).Expect, close, nil
	}
	wrapped, err := load.Middleware(new(idempotency.MemoryStore), handler)
	if err != nil {
		return nil, nil, err
	}
	return load.NewClient(wrapped).Expect, close, nil
}

// memoryOps are sent to a store in memory before it is thrown away: enough to make it
// grow as it does in use, and to leave nothing that slows down other cases.
const memoryOps = 20_000

func memoryCases() []measure.Case {
	var cases []measure.Case
	for _, op := range []string{"bare", "fresh", "replay"} {
		for _, impl := range implementations {
			cases = append(cases, measure.Case{
				Name: "Memory/op=" + op + "/by=" + impl.name,
				Run: func(ctx context.Context, d time.Duration) (measure.Sample, error) {
					return inMemory(ctx, d, impl, op)
				},
			})
		}
	}
	return cases
}

func inMemory(ctx context.Context, d time.Duration, impl implementation, op string) (s measure.Sample, err error) {
	for s.Elapsed < d && ctx.Err() == nil {
		send, close, err := impl.open(op != "bare")
		if err != nil {
			return s, err
		}
		replay := op == "replay"
		repeated := load.NewKey()
		if err := send(repeated, false); err != nil {
			return s, err
		}
		err = s.Add(func() (int, error) {
			for range memoryOps {
				key := load.NewKey() // made for each, so that it costs each the same
				if replay {
					key = repeated
				}
				if err := send(key, replay); err != nil {
					return 0, err
				}
			}
			return memoryOps, nil
		})
		close()
		if err != nil {
			return s, err
		}
	}
	return s, ctx.Err()
}

// memoryFlatOps are measured beside so many live records, which they add to.
const memoryFlatOps = 1000

// memoryFlatCases have one store with few live records and one with many.
func memoryFlatCases(many int) []measure.Case {
	var cases []measure.Case
	for _, op := range []string{"fresh", "replay"} {
		for _, live := range []int{few, many} {
			cases = append(cases, measure.Case{
				Name: flatName("memory", op, live),
				Run: func(ctx context.Context, d time.Duration) (measure.Sample, error) {
					return besideLive(ctx, d, op == "replay", live)
				},
			})
		}
	}
	return cases
}

func flatName(store, op string, live int) string {
	return fmt.Sprintf("Live/store=%s/op=%s/records=%d", store, op, live)
}

// besideLive measures requests to a store with live records. A store that is small is
// made anew before it has grown; one that is large may grow by a tenth.
func besideLive(ctx context.Context, d time.Duration, replay bool, live int) (s measure.Sample, err error) {
	for s.Elapsed < d && ctx.Err() == nil {
		handler, err := load.Middleware(new(idempotency.MemoryStore), load.Handler)
		if err != nil {
			return s, err
		}
		client := load.NewClient(handler)
		first := load.Reserve(live)
		for n := range live {
			if err := client.Expect(load.Key(first+uint64(n)), false); err != nil {
				return s, err
			}
		}
		runtime.GC()
		for added := 0; added <= live/10 && s.Elapsed < d; added += memoryFlatOps {
			err := s.Add(func() (int, error) {
				for n := range memoryFlatOps {
					key := load.NewKey()
					if replay {
						key = load.Key(first + uint64(n*7919%live)) // not in the order of memory
					}
					if err := client.Expect(key, replay); err != nil {
						return 0, err
					}
				}
				return memoryFlatOps, nil
			})
			if err != nil {
				return s, err
			}
		}
	}
	return s, ctx.Err()
}

// bytesPerRecord fills a store in memory and returns what a live record takes of the
// heap, and what of that is payload: key, fingerprint, header and body.
func bytesPerRecord(records int) (bytes, payload float64, err error) {
	store := new(idempotency.MemoryStore)
	handler, err := load.Middleware(store, load.Handler)
	if err != nil {
		return 0, 0, err
	}
	client := load.NewClient(handler)
	before := heap()
	for range records {
		if err := client.Expect(load.NewKey(), false); err != nil {
			return 0, 0, err
		}
	}
	bytes = float64(heap()-before) / float64(records)
	runtime.KeepAlive(store)
	for _, part := range []string{
		"single", "POST /charges", load.Key(0), // the key
		"Content-Type", "application/json", strconv.Itoa(load.Status), string(load.ResponseBody),
	} {
		payload += float64(len(part))
	}
	return bytes, payload, nil
}

func heap() int64 {
	runtime.GC()
	runtime.GC() // what finalizers held
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
