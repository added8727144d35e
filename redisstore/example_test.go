package redisstore_test

import (
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/seed-2d1e5f61/idempotency"
	"github.com/seed-2d1e5f61/idempotency/redisstore"
)

func ExampleNew() {
	client := redis.NewUniversalClient(&redis.UniversalOptions{
		Addrs:                 []string{"10.0.0.1:6379", "10.0.0.2:6379"}, // two or more: a cluster
		ContextTimeoutEnabled: true,
	})
	defer client.Close()

	store, err := redisstore.New(client, redisstore.Config{MinReplicas: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	var _ idempotency.Store = store // for idempotency.New
	// Output:
}
