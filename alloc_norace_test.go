//go:build !race

package idempotency_test

const raceAllocs = 0
