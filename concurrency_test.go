package idempotency_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency"
)

// duplicates is how many clients send one request at the same time, rounds how often
// over each protocol.
const (
	duplicates = 200
	rounds     = 25
)

func TestParallelDuplicatesInMemory(t *testing.T) {
	onEachProtocol(t, func(t *testing.T, listen listenFunc) {
		sendDuplicates(t, &idempotency.MemoryStore{}, listen)
	})
}

func TestParallelDuplicatesInPostgres(t *testing.T) {
	onEachProtocol(t, func(t *testing.T, listen listenFunc) {
		sendDuplicates(t, newPgFixture(t), listen)
	})
}

// sendDuplicates sends each request many times at once. It runs once; each of the others
// is told that it is in flight, or gets its response.
func sendDuplicates(t *testing.T, store idempotency.Store, listen listenFunc) {
	var runs, refused atomic.Int64
	release := make(chan struct{}, 1)
	m := newFixture(t, store, func(c *idempotency.Config) {
		c.StoreTimeout, c.Observe = guard, nil
	}).Handler(http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			runs.Add(1)
			select { // so that some meet it in flight, and some its outcome
			case <-release:
			case <-time.After(guard):
			}
			w.WriteHeader(http.StatusCreated)
			fmt.Fprint(w, r.Header.Get("Idempotency-Key"))
		}))
	p := listen(m)
	p.client.Transport.(*http.Transport).MaxIdleConnsPerHost = duplicates

	for round := range rounds {
		runs.Store(0)
		refused.Store(0)
		key := fmt.Sprint("round-", round)
		var clients sync.WaitGroup
		var fresh, replayed atomic.Int64
		for range duplicates {
			clients.Go(func() {
				a, err := p.do(p.request(t, key, strings.NewReader("{}")))
				if !assert.NoError(t, err) {
					return
				}
				switch {
				case a.Status == http.StatusConflict:
					if refused.Add(1) == duplicates/2 {
						release <- struct{}{}
					}
				case assert.Equal(t, http.StatusCreated, a.Status, a.Body) && assert.Equal(t, key, a.Body):
					if a.replayed() {
						replayed.Add(1)
					} else {
						fresh.Add(1)
					}
				}
			})
		}
		clients.Wait()
		require.EqualValues(t, 1, runs.Load(), "runs of the handler")
		require.EqualValues(t, 1, fresh.Load(), "first answers")
		require.EqualValues(t, duplicates-1, refused.Load()+replayed.Load())
	}
}

// With Wait, all of them get the response.
func TestParallelDuplicatesThatWait(t *testing.T) {
	onEachProtocol(t, func(t *testing.T, listen listenFunc) {
		h := &charges{}
		p := listen(newFixture(t, nil, waits(guard)).Handler(h))
		var clients sync.WaitGroup
		for range duplicates {
			clients.Go(func() {
				a, err := p.do(p.request(t, "k", strings.NewReader("{}")))
				if assert.NoError(t, err) {
					assert.Equal(t, `{"charge":1}`, a.Body)
				}
			})
		}
		clients.Wait()
		require.EqualValues(t, 1, h.Load())
	})
}
