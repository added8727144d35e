//go:build race

package idempotency_test

// raceAllocs is what the race detector adds: it puts the token on the heap, and makes
// sync.Pool drop what it is given at random.
const raceAllocs = 2
