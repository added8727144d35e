package idempotency

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
)

// Doubling must end at the highest wait before it overflows.
func TestBackoffDoesNotOverflow(t *testing.T) {
	t.Parallel()
	for attempt := range 200 {
		var longest int64
		for range 100 {
			longest = max(longest, int64(backoff(attempt+1, 1, math.MaxInt64)))
		}
		if attempt >= 63 {
			assert.Greater(t, longest, int64(math.MaxInt64/2), "attempt %d", attempt+1)
		}
	}
}
