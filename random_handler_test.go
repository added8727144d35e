package idempotency_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency"
)

// randomHandler does what a seed says, the same each time: it changes the header, sets
// the status, writes and flushes in any order.
func randomHandler(w http.ResponseWriter, r *http.Request) {
	seed, _ := strconv.ParseUint(r.Header.Get("Seed"), 10, 64)
	rng := rand.New(rand.NewPCG(seed, 1))
	names := []string{
		"Content-Type", "Content-Encoding", "Content-Language", "Location", "Link", "ETag", "Vary", "X-Other",
		"Set-Cookie", "Retry-After", "link", "Cache-Control",
	}
	for range rng.IntN(12) {
		name := names[rng.IntN(len(names))]
		switch rng.IntN(9) {
		case 0:
			w.Header().Set(name, fmt.Sprint("set", rng.IntN(3)))
		case 1:
			w.Header().Add(name, fmt.Sprint("add", rng.IntN(3)))
		case 2:
			w.Header().Del(name)
		case 3:
			w.Header()[name] = nil
		case 4:
			w.Header()[name] = append([]string{"first"}, w.Header()[name]...)
		case 5:
			w.WriteHeader([]int{200, 201, 204, 303, 304, 402, 500}[rng.IntN(7)])
		case 6:
			w.(http.Flusher).Flush()
		default:
			w.Write([]byte(strings.Repeat("<p>", []int{0, 1, 5, 100, 2000}[rng.IntN(5)])))
		}
	}
}

// outerHeader sets what layers outside do, the same for each request.
func outerHeader(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Outer") != "" {
			w.Header()["Link"] = []string{"</outer>", "</outer2>"}
			w.Header().Set("Vary", "Origin")
			w.Header().Set("Content-Language", "en")
			w.Header().Set("X-Other", "set0")
			w.Header().Set("Content-Type", "set1")
		}
		next.ServeHTTP(w, r)
	})
}

// Whatever a handler does with its response, the first answer is the bare handler's, and
// the replay has the same status, body and recorded fields.
func TestRandomHandlersEqualTheBareOnes(t *testing.T) {
	onEachProtocol(t, func(t *testing.T, listen listenFunc) {
		bare := listen(outerHeader(http.HandlerFunc(randomHandler)))
		wrapped := listen(outerHeader(newFixture(t, nil).Handler(http.HandlerFunc(randomHandler))))
		for seed := range 400 {
			fields := []string{"Seed", strconv.Itoa(seed)}
			if seed%2 == 1 {
				fields = append(fields, "Outer", "yes")
			}
			ask := func(p *peer) answer {
				a := p.post(t, fields[1], "{}", fields...)
				require.NoError(t, a.BodyErr, seed)
				a.Header.Del("Date")
				a.Header.Del("Content-Length")
				return a
			}
			want, got, again := ask(bare), ask(wrapped), ask(wrapped)
			require.Equal(t, want, got, "seed %d", seed)
			require.True(t, again.replayed(), seed)
			require.Equal(t, got.Status, again.Status, "seed %d", seed)
			require.Equal(t, got.Body, again.Body, "seed %d", seed)
			for _, name := range idempotency.DefaultReplayHeaders {
				name = http.CanonicalHeaderKey(name)
				if values, ok := got.Header[name]; ok {
					require.Equal(t, values, again.Header[name], "seed %d, %s", seed, name)
				} else if seed%2 == 0 {
					require.NotContains(t, again.Header, name, "seed %d", seed)
				}
			}
		}
	})
}
