package testredis

import (
	"context"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// Cluster is a Redis Cluster of three masters with a replica each.
type Cluster struct {
	Masters  [3]*Server
	Replicas [3]*Server // the i-th copies the i-th master, until a failover
}

const slots = 16384

// StartCluster starts the six servers and returns when every slot is served and every
// replica is in step. Servers decide late that another is dead, so that a slow machine
// looks like no failure, unless the lines of configuration say otherwise.
func StartCluster(t testing.TB, config ...string) *Cluster {
	t.Helper()
	need(t)
	c := new(Cluster)
	for i := range c.Masters {
		c.Masters[i] = startNode(t, config)
		c.Replicas[i] = startNode(t, config)
	}
	first := c.Masters[0]
	host, port, _ := net.SplitHostPort(first.Addr)
	for i, m := range c.Masters {
		m.Do(t, "CLUSTER", "ADDSLOTSRANGE", i*slots/3, (i+1)*slots/3-1)
		m.Do(t, "CLUSTER", "SET-CONFIG-EPOCH", i+1)
		for _, s := range []*Server{m, c.Replicas[i]} {
			if s != first {
				s.Do(t, "CLUSTER", "MEET", host, port, first.bus)
			}
		}
	}
	c.replicate(t)
	c.AwaitHealthy(t)
	return c
}

func startNode(t testing.TB, config []string) *Server {
	t.Helper()
	var bus string
	s := start(t, func() []string {
		bus = freePort(t)
		return append([]string{
			"save ''", "repl-diskless-sync-delay 0",
			"cluster-enabled yes", "cluster-port " + bus,
			"cluster-node-timeout 4000", "cluster-allow-replica-migration no",
			"repl-ping-replica-period 1", // clients are told of a replica once it has copied something
		}, config...)
	})
	s.bus = bus
	return s
}

func (c *Cluster) replicate(t testing.TB) {
	t.Helper()
	for i, r := range c.Replicas {
		id := c.Masters[i].id(t)
		Eventually(t, "a replica knows its master", func() bool {
			return r.client.ClusterReplicate(t.Context(), id).Err() == nil
		})
	}
}

func (s *Server) id(t testing.TB) string {
	t.Helper()
	return s.Do(t, "CLUSTER", "MYID").(string)
}

// AwaitHealthy waits until all six servers see every slot served, and every master
// has its replica in step.
func (c *Cluster) AwaitHealthy(t testing.TB) {
	t.Helper()
	Eventually(t, "the cluster is whole", func() bool {
		for i := range c.Masters {
			if !c.Masters[i].whole(t.Context()) || !c.Replicas[i].whole(t.Context()) ||
				!c.Masters[i].feeds(t.Context(), c.Replicas[i]) {
				return false
			}
		}
		return true
	})
}

// whole reports whether the cluster is complete, as s sees it and tells clients: every
// slot served, by a master and a replica that has copied something.
func (s *Server) whole(ctx context.Context) bool {
	info, err := s.client.ClusterInfo(ctx).Result()
	if err != nil || !strings.Contains(info, "cluster_state:ok") {
		return false
	}
	ranges, err := s.client.Do(ctx, "CLUSTER", "SLOTS").Slice()
	return err == nil && !slices.ContainsFunc(ranges, func(r any) bool {
		return len(r.([]any)) != 4 // first slot, last slot, master, replica
	})
}

// Client returns a client that is closed with the test.
func (c *Cluster) Client(t testing.TB) *redis.ClusterClient {
	t.Helper()
	client := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs:                 []string{c.Masters[0].Addr, c.Masters[1].Addr, c.Masters[2].Addr},
		ContextTimeoutEnabled: true,
	})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// Migration is a slot on its way from one master to another.
type Migration struct {
	slot     int
	from, to *Server
}

// Migrate begins to move a slot: keys that are there stay for the moment, others are
// for the new master already.
func (c *Cluster) Migrate(t testing.TB, slot int, from, to *Server) Migration {
	t.Helper()
	to.Do(t, "CLUSTER", "SETSLOT", slot, "IMPORTING", from.id(t))
	return c.MigrateHalf(t, slot, from, to)
}

// MigrateHalf begins to move a slot with only the old master told: it sends clients to
// the new one, which sends them back.
func (c *Cluster) MigrateHalf(t testing.TB, slot int, from, to *Server) Migration {
	t.Helper()
	from.Do(t, "CLUSTER", "SETSLOT", slot, "MIGRATING", to.id(t))
	return Migration{slot, from, to}
}

// MoveKeys moves the keys of the slot.
func (m Migration) MoveKeys(t testing.TB) {
	t.Helper()
	host, port, _ := net.SplitHostPort(m.to.Addr)
	for {
		keys, err := m.from.client.ClusterGetKeysInSlot(t.Context(), m.slot, 100).Result()
		if err != nil {
			t.Fatal(err)
		}
		if len(keys) == 0 {
			return
		}
		args := []any{"MIGRATE", host, port, "", 0, 5000, "KEYS"}
		for _, key := range keys {
			args = append(args, key)
		}
		m.from.Do(t, args...)
	}
}

// Finish gives the slot to the new master for good.
func (m Migration) Finish(t testing.TB) {
	t.Helper()
	id := m.to.id(t)
	m.to.Do(t, "CLUSTER", "SETSLOT", m.slot, "NODE", id)
	m.from.Do(t, "CLUSTER", "SETSLOT", m.slot, "NODE", id)
}

// Slot is the slot of a key without a hash tag: CRC-16/XMODEM, modulo the slots.
func Slot(key string) int {
	var crc uint16
	for _, b := range []byte(key) {
		crc ^= uint16(b) << 8
		for range 8 {
			carry := crc&0x8000 != 0
			crc <<= 1
			if carry {
				crc ^= 0x1021
			}
		}
	}
	return int(crc) % slots
}

// Owner is the master that had the slot when the cluster started.
func (c *Cluster) Owner(slot int) *Server {
	for i := range c.Masters {
		if slot < (i+1)*slots/3 {
			return c.Masters[i]
		}
	}
	return nil
}

// AwaitPromotion waits until the i-th replica has taken over from its master.
func (c *Cluster) AwaitPromotion(t testing.TB, i int) {
	t.Helper()
	Eventually(t, "a replica takes over", func() bool {
		info, err := c.Replicas[i].client.Info(t.Context(), "replication").Result()
		return err == nil && strings.Contains(info, "role:master")
	})
}
