package redisstore

import (
	"context"
	"fmt"
	"sync"

	"github.com/redis/go-redis/v9"
)

// evalAndWait runs sc and WAIT on one connection, because WAIT speaks for the writes of
// its own connection only. A cluster client would send WAIT elsewhere, so the node is
// picked here and redirections are followed here.
func (s *Store) evalAndWait(ctx context.Context, sc script, name string, args []any) (reply any, short, err error) {
	node, err := s.master(ctx, name)
	if err != nil {
		return nil, nil, err
	}
	asking := false
	for redirections := 0; ; redirections++ {
		reply, short, err = s.pipeline(ctx, node, asking, sc, name, args)
		var addr string
		addr, asking = redirection(err)
		if addr == "" || redirections == maxRedirections {
			break
		}
		if node, err = s.nodeAt(ctx, addr); err != nil {
			break
		}
	}
	if err != nil {
		s.reload(ctx)
	}
	return reply, short, err
}

// maxRedirections is what go-redis allows by default.
const maxRedirections = 3

func redirection(err error) (addr string, asking bool) {
	if addr, ok := redis.IsMovedError(err); ok {
		return addr, false
	}
	return redis.IsAskError(err)
}

func (s *Store) pipeline(ctx context.Context, node *redis.Client, asking bool, sc script, name string, args []any) (reply any, short, err error) {
	send := func(eval func(context.Context, redis.Scripter, []string, ...any) *redis.Cmd) (run, wait *redis.Cmd) {
		pipe := node.Pipeline()
		if asking {
			pipe.Do(ctx, "ASKING") // holds for the next command alone
		}
		run = eval(ctx, pipe, []string{name}, args...)
		wait = pipe.Do(ctx, "WAIT", s.cfg.MinReplicas, s.cfg.ReplicaTimeout.Milliseconds())
		_, _ = pipe.Exec(ctx) // each command has its own error
		return run, wait
	}
	run, wait := send(sc.EvalSha)
	if redis.HasErrorPrefix(run.Err(), "NOSCRIPT") {
		run, wait = send(sc.Eval)
	}
	if run.Err() != nil {
		return nil, nil, run.Err()
	}
	switch acknowledged, err := wait.Int64(); {
	case err != nil:
		short = fmt.Errorf("%w: %w", ErrTooFewReplicas, err)
	case acknowledged < int64(s.cfg.MinReplicas):
		short = fmt.Errorf("%w: %d of %d have the write", ErrTooFewReplicas, acknowledged, s.cfg.MinReplicas)
	}
	return run.Val(), short, nil
}

// master is the server that should have name. validate has let no other client pass.
func (s *Store) master(ctx context.Context, name string) (*redis.Client, error) {
	if cluster, ok := s.client.(*redis.ClusterClient); ok {
		return cluster.MasterForKey(ctx, name)
	}
	return s.client.(*redis.Client), nil
}

// nodeAt finds the server that a redirection names. ForEachShard loads the cluster's
// present shape first, so later calls go to the right server at once.
func (s *Store) nodeAt(ctx context.Context, addr string) (*redis.Client, error) {
	cluster, ok := s.client.(*redis.ClusterClient)
	if !ok {
		return nil, fmt.Errorf("redirected to %s: a cluster needs a ClusterClient", addr)
	}
	var mu sync.Mutex
	var found *redis.Client
	err := cluster.ForEachShard(ctx, func(_ context.Context, node *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		if node.Options().Addr == addr {
			found = node
		}
		return nil
	})
	if found == nil && err == nil {
		err = fmt.Errorf("redirected to %s, which the cluster does not list", addr)
	}
	return found, err
}

// reload has the cluster client look for new masters, as it does after errors on its
// own calls; otherwise the caller's next try would go to the dead one again.
func (s *Store) reload(ctx context.Context) {
	if cluster, ok := s.client.(*redis.ClusterClient); ok {
		cluster.ReloadState(ctx)
	}
}
