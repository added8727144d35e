package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed-2d1e5f61/idempotency"
)

// soak is a run: what is sent, the handler that it meets, and what is known of each key
// apart from the store.
type soak struct {
	o options

	mu        sync.Mutex
	keys      []*operation // of late, to be repeated
	latencies []time.Duration
	outcomes  map[idempotency.Outcome]int
	faults    []string

	doubles, underWay atomic.Int64
	began             time.Time
}

// operation is what one key is used for.
type operation struct {
	key, body string
	slow      bool

	mu      sync.Mutex
	ran     time.Time // when the request was sent that ran last; zero before the first
	answers map[string]bool
}

// request is an operation's request, as its handler finds it in the context.
type request struct {
	op   *operation
	sent time.Time
}

// recent is how many keys may be repeated.
const recent = 1000

func newSoak(o options) *soak {
	return &soak{o: o, outcomes: make(map[idempotency.Outcome]int), began: time.Now()}
}

func (s *soak) observe(_ context.Context, e idempotency.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.outcomes[e.Outcome]++
}

type requestKey struct{}

// ServeHTTP is the handler. A second run is a fault if it comes within the TTL of the
// first: that one was reserved after it was sent, so its record cannot have expired.
func (s *soak) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	req := r.Context().Value(requestKey{}).(request)
	op := req.op
	answer := idempotency.NewKey()
	op.mu.Lock()
	if !op.ran.IsZero() && time.Since(op.ran) < s.o.ttl {
		s.doubles.Add(1)
	}
	op.ran = req.sent
	op.answers[answer] = true
	op.mu.Unlock()
	if op.slow {
		time.Sleep(s.o.slowness)
	}
	w.WriteHeader(http.StatusCreated)
	io.WriteString(w, answer)
}

// next decides what is sent: a fresh key, a duplicate, or a mismatch.
func (s *soak) next() (op *operation, body string, mismatch bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	draw := rand.Float64()
	if len(s.keys) > 0 && draw < s.o.duplicates+s.o.mismatches {
		op = s.keys[rand.IntN(len(s.keys))]
		if draw < s.o.mismatches {
			return op, op.body + " ", true
		}
		return op, op.body, false
	}
	op = &operation{key: idempotency.NewKey(), slow: rand.Float64() < s.o.slow, answers: make(map[string]bool)}
	op.body = `{"amount":1200,"note":"` + strings.Repeat("x", 150) + `"}`
	if len(s.keys) < recent {
		s.keys = append(s.keys, op)
	} else {
		s.keys[rand.IntN(recent)] = op
	}
	return op, op.body, false
}

// load sends requests when they are due, until the time is over, and waits for them.
func (s *soak) load(ctx context.Context, h http.Handler, pool *pgxpool.Pool, out io.Writer) {
	ctx, stop := context.WithTimeout(ctx, s.o.length)
	defer stop()
	var wg sync.WaitGroup
	wg.Go(func() { s.progress(ctx, pool, out) })
	places := make(chan struct{}, s.o.callers)
	interval := time.Duration(float64(time.Second) / s.o.rate)
	for n := 0; ; n++ {
		due := s.began.Add(time.Duration(n) * interval)
		select {
		case <-ctx.Done():
			wg.Wait()
			return
		case <-time.After(time.Until(due)):
		}
		s.underWay.Add(1)
		wg.Go(func() {
			defer s.underWay.Add(-1)
			places <- struct{}{}
			defer func() { <-places }()
			s.send(h, due)
		})
	}
}

// send makes one request and judges its answer. Its client stays to the end.
func (s *soak) send(h http.Handler, due time.Time) {
	op, body, mismatch := s.next()
	r := httptest.NewRequest(http.MethodPost, "/charges", strings.NewReader(body))
	r.Header.Set("Idempotency-Key", op.key)
	r = r.WithContext(context.WithValue(context.Background(), requestKey{}, request{op, time.Now()}))
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	latency := time.Since(due)

	op.mu.Lock()
	known := op.answers[w.Body.String()]
	op.mu.Unlock()
	var fault string
	switch w.Code {
	case http.StatusCreated:
		if !known {
			fault = "an answer that no run of the key has given"
		}
	case http.StatusConflict, http.StatusServiceUnavailable:
	case http.StatusUnprocessableEntity:
		// After the TTL a mismatch may have come first, and the old payload second.
	default:
		fault = fmt.Sprintf("status %d (mismatch: %v)", w.Code, mismatch)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.latencies = append(s.latencies, latency)
	if fault != "" {
		s.faults = append(s.faults, fault)
	}
}

// progress prints a line a second: what is done, and how large the table is.
func (s *soak) progress(ctx context.Context, pool *pgxpool.Pool, out io.Writer) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		var rows, size int64
		err := pool.QueryRow(ctx, `SELECT (SELECT count(*) FROM idempotency_keys),
			pg_total_relation_size('idempotency_keys')`).Scan(&rows, &size)
		if err != nil {
			continue // the load is the judge of the database
		}
		s.mu.Lock()
		done := len(s.latencies)
		s.mu.Unlock()
		fmt.Fprintf(out, "%4.0f s  %8d answered  %6d under way  %8d rows  %6.1f MB  %d double runs\n",
			time.Since(s.began).Seconds(), done, s.underWay.Load(), rows, float64(size)/1e6, s.doubles.Load())
	}
}

func (s *soak) report(out io.Writer) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	elapsed := time.Since(s.began)
	n := len(s.latencies)
	if n == 0 {
		return errors.New("not one request was answered")
	}
	slices.Sort(s.latencies)
	at := func(share float64) time.Duration {
		return s.latencies[min(n-1, int(share*float64(n)))].Round(10 * time.Microsecond)
	}
	fmt.Fprintf(out, "%d requests, %.0f a second\n", n, float64(n)/elapsed.Seconds())
	fmt.Fprintf(out, "latency from when due: p50 %v, p90 %v, p99 %v, p99.9 %v, most %v\n", at(0.5), at(0.9), at(0.99), at(0.999), at(1))
	for _, outcome := range slices.Sorted(maps.Keys(s.outcomes)) {
		fmt.Fprintf(out, "%s %d\n", outcome, s.outcomes[outcome])
	}
	fmt.Fprintf(out, "double runs: %d\n", s.doubles.Load())
	if s.doubles.Load() > 0 || len(s.faults) > 0 {
		return fmt.Errorf("%d double runs, %d wrong answers %q", s.doubles.Load(), len(s.faults), s.faults[:min(3, len(s.faults))])
	}
	return nil
}
