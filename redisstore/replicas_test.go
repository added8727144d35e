package redisstore

import (
	"errors"
	"testing"
	"time"

	"github.com/seed-2d1e5f61/idempotency"
	"github.com/seed-2d1e5f61/idempotency/redisstore/internal/testredis"
)

// patient has a slow machine's replica acknowledge in time.
var patient = Config{MinReplicas: 1, ReplicaTimeout: 2 * time.Second}

// Without the replica nothing is acknowledged, and nothing that needs no write fails.
func TestMinReplicas(t *testing.T) {
	t.Parallel()
	primary, replica := pair(t)
	s := open(t, primary.Client(t), patient)
	done, running, lapsed := newClaim(), newClaim(), newClaim()
	lapsed.Lease = 0
	reserveAs(t, s, done, idempotency.Acquired)
	reserveAs(t, s, running, idempotency.Acquired)
	reserveAs(t, s, lapsed, idempotency.Acquired)
	completeOf(t, s, done)

	replica.Do(t, "REPLICAOF", "NO", "ONE")
	s.cfg.ReplicaTimeout = 20 * time.Millisecond
	for what, c := range map[string]idempotency.Claim{
		"a new key": newClaim(), "a repeated reserve": running, "a takeover": takeover(lapsed),
	} {
		if rec, err := s.Reserve(t.Context(), c); !errors.Is(err, ErrTooFewReplicas) || rec.State != 0 {
			t.Errorf("%s without the replica: %+v, %v", what, rec, err)
		}
	}
	if err := s.Complete(t.Context(), running, created); !errors.Is(err, ErrTooFewReplicas) {
		t.Errorf("a completion without the replica: %v", err)
	}
	if err := s.Complete(t.Context(), rival(running), created); !errors.Is(err, idempotency.ErrClaimLost) {
		t.Errorf("a completion by another without the replica: %v", err)
	}
	reserveAs(t, s, rival(done), idempotency.Completed)

	replica.Replicate(t, primary)
	s.cfg.ReplicaTimeout = patient.ReplicaTimeout
	completeOf(t, s, running) // repeated: now it counts
}

func takeover(c idempotency.Claim) idempotency.Claim {
	c = rival(c)
	c.Rerun = true
	return c
}

// WAIT counts the replicas that have the connection's last write. The completion that
// is repeated may have been made over another one.
func TestARepeatedCompletionIsSentToTheReplicasAgain(t *testing.T) {
	t.Parallel()
	primary, _ := pair(t)
	s := open(t, primary.Client(t), patient)
	c := newClaim()
	reserveAs(t, s, c, idempotency.Acquired)
	completeOf(t, s, c)
	before := changes(t, primary)
	completeOf(t, s, c)
	if changes(t, primary) == before {
		t.Error("nothing is written that WAIT could wait for")
	}
}

// While a slot moves, a key is at the old master or at the new one, and the servers say
// where. WAIT must go the same way as the script.
func TestMinReplicasFollowsASlotThatMoves(t *testing.T) {
	t.Parallel()
	cluster := testredis.StartCluster(t)
	s := open(t, cluster.Client(t), patient)
	from, to := cluster.Masters[0], cluster.Masters[1]

	stays := claimAt(s, cluster, from)
	slot := slotOf(s, stays)
	comes, after := claimIn(s, slot), claimIn(s, slot)
	reserveAs(t, s, stays, idempotency.Acquired)

	cluster.MigrateHalf(t, slot, from, to)
	if _, err := s.Reserve(t.Context(), comes); err == nil {
		t.Error("a key was given away by servers that send each other the client")
	}
	if err := s.Complete(t.Context(), comes, created); err == nil || errors.Is(err, idempotency.ErrClaimLost) {
		t.Errorf("a completion that reached no server: %v", err)
	}

	move := cluster.Migrate(t, slot, from, to)
	reserveAs(t, s, rival(stays), idempotency.InFlight)
	reserveAs(t, s, comes, idempotency.Acquired) // the old master says: ask the new one
	if to.Do(t, "CLUSTER", "COUNTKEYSINSLOT", slot) != int64(1) {
		t.Fatal("the new key is not where the slot is moving to")
	}
	move.MoveKeys(t)
	completeOf(t, s, stays)
	move.Finish(t)
	completeOf(t, s, comes)                      // the old master says: moved for good
	reserveAs(t, s, after, idempotency.Acquired) // known by now
	for _, c := range []idempotency.Claim{stays, comes} {
		reserveAs(t, s, rival(c), idempotency.Completed)
	}
}

func slotOf(s *Store, c idempotency.Claim) int { return testredis.Slot(s.name(c.Key)) }

// claimAt returns a claim on a new key in one of the slots that are master's.
func claimAt(s *Store, cluster *testredis.Cluster, master *testredis.Server) idempotency.Claim {
	for {
		if c := newClaim(); cluster.Owner(slotOf(s, c)) == master {
			return c
		}
	}
}

// claimIn returns a claim on a new key in slot.
func claimIn(s *Store, slot int) idempotency.Claim {
	for {
		if c := newClaim(); slotOf(s, c) == slot {
			return c
		}
	}
}
