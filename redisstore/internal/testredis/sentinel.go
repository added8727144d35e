package testredis

import (
	"fmt"
	"net"
	"testing"

	"github.com/redis/go-redis/v9"
)

// StartSentinel starts a sentinel that makes a replica of primary the master when
// primary is away, and returns a client that asks it where the master is.
func StartSentinel(t testing.TB, primary *Server) *redis.Client {
	t.Helper()
	need(t)
	const name = "main"
	host, port, _ := net.SplitHostPort(primary.Addr)
	sentinel := start(t, func() []string {
		return []string{
			fmt.Sprintf("sentinel monitor %s %s %s 1", name, host, port),
			fmt.Sprintf("sentinel down-after-milliseconds %s 1000", name),
		}
	}, "--sentinel")
	client := redis.NewFailoverClient(&redis.FailoverOptions{
		MasterName: name, SentinelAddrs: []string{sentinel.Addr}, ContextTimeoutEnabled: true,
	})
	t.Cleanup(func() { _ = client.Close() })
	return client
}
