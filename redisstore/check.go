package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

var (
	// ErrEviction comes from [Store.Check]: the server deletes records that are still
	// needed when its memory is full.
	ErrEviction = errors.New("redisstore: maxmemory-policy is not noeviction")
	// ErrNoAppendOnly comes from [Store.Check]: a restart of the server loses all
	// records since its last snapshot.
	ErrNoAppendOnly = errors.New("redisstore: appendonly is off")
	// ErrReplica comes from [Store.Check]: the server is a replica and refuses writes.
	ErrReplica = errors.New("redisstore: server is a replica")
)

// Check asks the servers for what would lose records, and returns all it finds, joined:
// [ErrEviction], [ErrNoAppendOnly], [ErrReplica], and [ErrTooFewReplicas] for a master
// with fewer replicas than [Config.MinReplicas]. In a cluster it asks every server,
// since a replica may be the next master. Call it at start, and decide with errors.Is
// what you can live with. It uses INFO alone, which managed services allow; appendfsync
// is not in there. A server that does not answer is an error as well.
func (s *Store) Check(ctx context.Context) error {
	cluster, ok := s.client.(*redis.ClusterClient)
	if !ok {
		return s.checkServer(ctx, s.client, "the server", false)
	}
	var mu sync.Mutex
	var problems []error
	err := cluster.ForEachShard(ctx, func(ctx context.Context, node *redis.Client) error {
		err := s.checkServer(ctx, node, node.Options().Addr, true)
		mu.Lock()
		defer mu.Unlock()
		problems = append(problems, err)
		return nil
	})
	if err != nil {
		problems = append(problems, fmt.Errorf("redisstore: check: %w", err))
	}
	return errors.Join(problems...)
}

func (s *Store) checkServer(ctx context.Context, server redis.Cmdable, addr string, mayCopy bool) error {
	text, err := server.Info(ctx).Result()
	if err != nil {
		return fmt.Errorf("redisstore: check: %s: %w", addr, err)
	}
	info, replicas := parseInfo(text)
	var problems []error
	if policy := info["maxmemory_policy"]; policy != "noeviction" {
		problems = append(problems, fmt.Errorf("%w but %q: %s", ErrEviction, policy, addr))
	}
	if info["aof_enabled"] != "1" {
		problems = append(problems, fmt.Errorf("%w: %s", ErrNoAppendOnly, addr))
	}
	switch copies := info["role"] == "slave"; {
	case copies && !mayCopy:
		problems = append(problems, fmt.Errorf("%w: %s", ErrReplica, addr))
	case !copies && replicas < s.cfg.MinReplicas:
		problems = append(problems, fmt.Errorf("%w: %d of %d are there: %s",
			ErrTooFewReplicas, replicas, s.cfg.MinReplicas, addr))
	}
	return errors.Join(problems...)
}

// parseInfo reads the reply of INFO and counts the replicas that are online, which it
// lists as slave0:ip=…,port=…,state=online,… and so on.
func parseInfo(text string) (info map[string]string, replicas int) {
	info = make(map[string]string)
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		info[name] = value
		if strings.HasPrefix(name, "slave") && strings.Contains(value, "state=online") {
			replicas++
		}
	}
	return info, replicas
}
