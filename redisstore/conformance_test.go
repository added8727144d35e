package redisstore

import (
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/seed-2d1e5f61/idempotency"
	"github.com/seed-2d1e5f61/idempotency/redisstore/internal/testredis"
	"github.com/seed-2d1e5f61/idempotency/storetest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	primary, _ := pair(t)
	cluster := testredis.StartCluster(t)
	for name, client := range map[string]redis.UniversalClient{
		"single":  primary.Client(t),
		"cluster": cluster.Client(t),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			storetest.Run(t, func(t *testing.T) idempotency.Store {
				return open(t, client, Config{Prefix: t.Name() + ":"})
			})
		})
		t.Run(name+", MinReplicas", func(t *testing.T) {
			t.Parallel()
			storetest.Run(t, func(t *testing.T) idempotency.Store {
				cfg := patient
				cfg.Prefix = t.Name() + ":"
				return open(t, client, cfg)
			})
		})
	}
}
