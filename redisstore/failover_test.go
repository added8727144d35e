package redisstore

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/seed-2d1e5f61/idempotency"
	"github.com/seed-2d1e5f61/idempotency/redisstore/internal/testredis"
)

// rounds is how often each failover test kills a master. The figures in the README are
// from more of them: REDISSTORE_ROUNDS=20 go test -run Failover -v
func rounds(t *testing.T) int {
	t.Helper()
	n, err := strconv.Atoi(os.Getenv("REDISSTORE_ROUNDS"))
	if err != nil {
		return 1
	}
	return n
}

// A master of a cluster is killed while 16 clients write, its replica takes over, and
// it comes back as the new master's replica.
func TestFailoverInACluster(t *testing.T) {
	t.Parallel()
	cluster := testredis.StartCluster(t, "cluster-node-timeout 1500")
	for _, replicas := range []int{0, 1} {
		tr := newTraffic(open(t, cluster.Client(t), Config{MinReplicas: replicas}))
		for round := range rounds(t) {
			i := round % len(cluster.Masters)
			tr.run(t, func() {
				tr.progress(t, 1000)
				cluster.Masters[i].Kill()
				cluster.AwaitPromotion(t, i)
				if replicas > 0 { // the new master is found at once, and has no replica yet
					c := claimAt(tr.store, cluster, cluster.Masters[i])
					testredis.Eventually(t, "the new master is asked", func() bool {
						_, err := tr.store.Reserve(t.Context(), c)
						return errors.Is(err, ErrTooFewReplicas)
					})
				}
				cluster.Masters[i].Restart(t)
				tr.progress(t, 1000)
			})
			cluster.Masters[i], cluster.Replicas[i] = cluster.Replicas[i], cluster.Masters[i]
			cluster.AwaitHealthy(t)
		}
		lost := tr.verify(t, open(t, cluster.Client(t), Config{}))
		tr.report(t, fmt.Sprintf("MinReplicas %d, %d masters killed", replicas, rounds(t)), lost)
		if n := tr.unhealed.Load(); n > 0 {
			t.Errorf("%d calls did not succeed within %v", n, tr.patience)
		}
		if replicas > 0 && lost != (losses{}) {
			t.Errorf("lost though the only replica had acknowledged: %+v", lost)
		}
	}
}

// On loopback a replica lags by microseconds, so a killed master loses next to nothing.
// Here it is as far away as another data centre, and the master's machine dies: what
// was on its way is gone.
func TestFailoverAcrossADistance(t *testing.T) {
	t.Parallel()
	for _, replicas := range []int{0, 1} {
		var killed, claims int
		var total losses
		// On a busy machine the link may run empty between the kill and the cut. Without
		// MinReplicas it goes on until something is lost, or the test would see nothing.
		for killed < rounds(t) || replicas == 0 && total.claims == 0 && killed < rounds(t)+20 {
			tr, lost := killAcross(t, replicas)
			killed++
			claims += len(tr.claims)
			total.claims += lost.claims
			total.outcomes += lost.outcomes
		}
		t.Logf("MinReplicas %d, %d masters killed, the replica %v away: %d claims acknowledged, %d lost, %d outcomes lost",
			replicas, killed, distance, claims, total.claims, total.outcomes)
		if replicas > 0 && total != (losses{}) {
			t.Errorf("lost though the replica had acknowledged: %+v", total)
		}
		if replicas == 0 && total.claims == 0 {
			t.Error("nothing was lost without MinReplicas")
		}
	}
}

const distance = 5 * time.Millisecond

func killAcross(t *testing.T, replicas int) (*traffic, losses) {
	t.Helper()
	primary, replica := testredis.Start(t), testredis.Start(t)
	link := replica.ReplicateFrom(t, primary, distance)
	tr := newTraffic(open(t, primary.Client(t), Config{MinReplicas: replicas}))
	tr.patience = 100 * time.Millisecond // nobody comes back
	tr.run(t, func() {
		tr.progress(t, 500)
		primary.Kill(link)
	})
	replica.Do(t, "REPLICAOF", "NO", "ONE")
	return tr, tr.verify(t, open(t, replica.Client(t), Config{}))
}

// With Sentinel the client is another one, which is told who the master is.
func TestFailoverBySentinel(t *testing.T) {
	t.Parallel()
	primary, _ := pair(t)
	client := testredis.StartSentinel(t, primary)
	tr := newTraffic(open(t, client, patient))
	tr.run(t, func() { tr.progress(t, 200) })
	primary.Kill()

	s := open(t, client, Config{}) // the new master has no replica
	testredis.Eventually(t, "the replica takes over", func() bool {
		_, err := s.Reserve(t.Context(), newClaim())
		return err == nil
	})
	if lost := tr.verify(t, s); lost != (losses{}) {
		t.Errorf("lost though the replica had acknowledged: %+v", lost)
	}
}

// Slots move from one master to another while 16 clients write to keys in them.
func TestResharding(t *testing.T) {
	t.Parallel()
	cluster := testredis.StartCluster(t)
	const moving = 128 // slots
	for _, replicas := range []int{0, 1} {
		s := open(t, cluster.Client(t), Config{MinReplicas: replicas})
		first := replicas * moving
		tr := newTraffic(s)
		tr.newClaim = func() idempotency.Claim {
			for {
				c := newClaim()
				if slot := testredis.Slot(s.name(c.Key)); slot >= first && slot < first+moving {
					return c
				}
			}
		}
		tr.run(t, func() {
			var moves []testredis.Migration
			for slot := first; slot < first+moving; slot++ {
				moves = append(moves, cluster.Migrate(t, slot, cluster.Masters[0], cluster.Masters[1]))
			}
			tr.progress(t, 200)
			for _, move := range moves {
				move.MoveKeys(t)
				move.Finish(t)
			}
			tr.progress(t, 200)
		})
		lost := tr.verify(t, s)
		tr.report(t, fmt.Sprintf("MinReplicas %d, %d slots moved", replicas, moving), lost)
		if lost != (losses{}) || tr.unhealed.Load() > 0 {
			t.Errorf("lost %+v, %d calls never succeeded", lost, tr.unhealed.Load())
		}
	}
}
