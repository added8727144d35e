// Package redisstore keeps idempotency records in Redis or Valkey: a single server,
// Sentinel or Cluster, whatever [redis.UniversalClient] reaches.
//
//	store, err := redisstore.New(client, redisstore.Config{})
//	...
//	err = store.Check(ctx) // settings of the servers under which records get lost
//	...
//	m, err := idempotency.New(store, idempotency.Config{Tenant: tenantOf})
//
// Each record is one hash under one key, so every operation touches one slot of a
// cluster. Each method of [Store] is one script and one round trip, judged by the
// clock of the server that has the record and fenced by the claim's token. Servers
// delete dead records by themselves; nothing has to be swept.
//
// # What it does not promise
//
// Redis answers before its replicas have the write. A failover can lose a claim or an
// outcome that was acknowledged, and then a retry runs the handler a second time.
// [Config.MinReplicas] makes that much rarer, not impossible. A server that restarts
// without an append-only file forgets everything since its last snapshot, and one that
// evicts keys under memory pressure forgets any record. After a failover another
// server's clock judges leases and TTLs: keep the servers' clocks together.
//
// So for money take [idempotency.PostgresStore] with InTx. Redis is for rate, or for
// handlers with a constraint of the business behind them that refuses the second run.
package redisstore

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-2d1e5f61/idempotency"
	"github.com/seed-2d1e5f61/idempotency/internal/headercode"
)

// Config says how a [Store] uses its servers. The zero value is ready to use.
type Config struct {
	// Prefix begins the name of every key and channel that the store uses. Stores that
	// share servers but not records need different ones. It must not hold a brace,
	// which would put all records in one slot of a cluster. "": "idempotency:".
	Prefix string

	// MinReplicas is how many replicas must have the write before Reserve or Complete
	// count (WAIT); with fewer, they return [ErrTooFewReplicas]. It needs a
	// [redis.Client] or [redis.ClusterClient]. 0: Redis answers as soon as the master
	// has it.
	MinReplicas int

	// ReplicaTimeout bounds that wait. It must be shorter than the client's
	// ReadTimeout. 0: 500 ms.
	ReplicaTimeout time.Duration
}

// ErrTooFewReplicas says that fewer replicas than [Config.MinReplicas] have a write.
// The master has it, so the caller does not know what a failover would leave.
var ErrTooFewReplicas = errors.New("redisstore: too few replicas")

// Store is an [idempotency.Store] and [idempotency.Waiter]. It is safe for concurrent
// use. It has nothing to close: the client is the caller's, and the one connection on
// which waiting duplicates are woken is closed when nobody has waited for a while.
type Store struct {
	client  redis.UniversalClient
	cfg     Config
	waiters *waiters
}

var (
	_ idempotency.Store  = (*Store)(nil)
	_ idempotency.Waiter = (*Store)(nil)
)

// New returns a store on client, or every problem of its arguments joined. It does no
// I/O and starts no goroutine; [Store.Check] asks the servers.
//
// go-redis heeds a context's deadline only while it waits for a connection, unless the
// client has ContextTimeoutEnabled: set it, or calls take up to ReadTimeout longer. A
// [redis.Ring] is refused: it takes another server for a key whose server is away, and
// there is no record there.
func New(client redis.UniversalClient, cfg Config) (*Store, error) {
	if cfg.Prefix == "" {
		cfg.Prefix = "idempotency:"
	}
	if cfg.ReplicaTimeout == 0 {
		cfg.ReplicaTimeout = 500 * time.Millisecond
	}
	if err := validate(client, cfg); err != nil {
		return nil, err
	}
	return &Store{client: client, cfg: cfg, waiters: newWaiters(client, cfg.Prefix+"settled")}, nil
}

func validate(client redis.UniversalClient, cfg Config) error {
	var problems []error
	problem := func(format string, args ...any) {
		problems = append(problems, fmt.Errorf("redisstore: "+format, args...))
	}
	if strings.ContainsAny(cfg.Prefix, "{}") {
		problem("Prefix %q has a brace", cfg.Prefix)
	}
	if cfg.MinReplicas < 0 {
		problem("MinReplicas is negative")
	}
	if cfg.ReplicaTimeout < time.Millisecond {
		problem("ReplicaTimeout is under 1 ms") // WAIT counts in ms, and 0 would be for ever
	}

	if v := reflect.ValueOf(client); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
		problem("client is nil")
		client = nil
	}
	var readTimeout time.Duration
	switch c := client.(type) {
	case nil: // said
	case *redis.Client:
		readTimeout = c.Options().ReadTimeout
	case *redis.ClusterClient:
		readTimeout = c.Options().ReadTimeout
	case *redis.Ring:
		problem("a Ring loses records when a server is away")
	default:
		if cfg.MinReplicas > 0 {
			problem("MinReplicas needs a Client or a ClusterClient, not %T", client)
		}
	}
	if cfg.MinReplicas > 0 && readTimeout > 0 && readTimeout <= cfg.ReplicaTimeout {
		problem("ReplicaTimeout %v is not under the client's ReadTimeout %v", cfg.ReplicaTimeout, readTimeout)
	}
	return errors.Join(problems...)
}

// Reserve implements [idempotency.Store].
func (s *Store) Reserve(ctx context.Context, c idempotency.Claim) (idempotency.Record, error) {
	reply, short, err := s.eval(ctx, reserve, c.Key, c.Token[:], c.Fingerprint[:],
		millis(c.Lease), millis(c.TTL), c.Rerun, c.Key.Tenant, c.Key.Endpoint, c.Key.Value)
	if err != nil {
		return idempotency.Record{}, fmt.Errorf("redisstore: reserve: %w", err)
	}
	rec, err := parseRecord(reply)
	if err != nil {
		return idempotency.Record{}, fmt.Errorf("redisstore: reserve: %w", err)
	}
	if rec.State == idempotency.Acquired && short != nil {
		return idempotency.Record{}, fmt.Errorf("redisstore: reserve: %w", short)
	}
	return rec, nil
}

// Extend implements [idempotency.Store]. It does not wait for replicas: after a
// failover the lease may be the one before.
func (s *Store) Extend(ctx context.Context, c idempotency.Claim) error {
	return s.settle(ctx, extend, c, c.Token[:], millis(c.Lease))
}

// Complete implements [idempotency.Store].
func (s *Store) Complete(ctx context.Context, c idempotency.Claim, resp idempotency.Response) error {
	omitted := ""
	if resp.Omitted {
		omitted = "1"
	}
	return s.settle(ctx, complete, c, c.Token[:], millis(c.TTL), s.waiters.channel, resp.Status,
		headercode.Append(nil, resp.Header, resp.Appended), resp.Body, resp.Ref, omitted)
}

// Release implements [idempotency.Store]. It does not wait for replicas: after a
// failover the claim may be there again.
func (s *Store) Release(ctx context.Context, c idempotency.Claim) error {
	return s.settle(ctx, release, c, c.Token[:], s.waiters.channel)
}

// settle runs a script that answers whether the token owned the key.
func (s *Store) settle(ctx context.Context, sc script, c idempotency.Claim, args ...any) error {
	reply, short, err := s.eval(ctx, sc, c.Key, args...)
	switch {
	case err != nil:
		return fmt.Errorf("redisstore: %s: %w", sc.name, err)
	case reply == int64(0):
		return idempotency.ErrClaimLost
	case reply != int64(1):
		return fmt.Errorf("redisstore: %s: %w", sc.name, errReply)
	case short != nil:
		return fmt.Errorf("redisstore: %s: %w", sc.name, short)
	}
	return nil
}

// name is the key that the record is kept under. The digest is over tenant, endpoint
// and value, each behind its length, so that no two keys share a name; its first half
// is the KeyHash of logs and events.
func (s *Store) name(key idempotency.Key) string {
	framed := make([]byte, 0, 256)
	for _, part := range [...]string{key.Tenant, key.Endpoint, key.Value} {
		framed = binary.BigEndian.AppendUint64(framed, uint64(len(part)))
		framed = append(framed, part...)
	}
	sum := sha256.Sum256(framed)
	return s.cfg.Prefix + hex.EncodeToString(sum[:])
}

// millis rounds up: a lease or a TTL is never shorter than asked. It divides first, so
// that the longest one does not overflow.
func millis(d time.Duration) int64 {
	n := int64(d / time.Millisecond)
	if d%time.Millisecond > 0 {
		n++
	}
	return n
}

// duration is the length of n milliseconds, at most the longest there is; none if n is
// negative.
func duration(n int64) time.Duration {
	return time.Duration(min(max(n, 0), math.MaxInt64/int64(time.Millisecond))) * time.Millisecond
}
