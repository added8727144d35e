package storetest

import "time"

// SetLimits changes how long a subtest and a call beyond it may take.
func SetLimits(subtest, call time.Duration) { limit, grace = subtest, call }
