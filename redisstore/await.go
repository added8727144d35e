package redisstore

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-2d1e5f61/idempotency"
)

// Await implements [idempotency.Waiter]. All that wait in a store share one
// subscription, and a key's end is announced only if somebody waits for it.
func (s *Store) Await(ctx context.Context, key idempotency.Key) error {
	w := s.waiters.join(s.name(key))
	defer s.waiters.leave(w)

	for look := s.waiters.firstLook; ; look = min(2*look, s.waiters.lastLook) {
		reply, _, err := s.eval(ctx, await, key)
		if ctx.Err() != nil {
			return ctx.Err() // go-redis may call it a timeout of the connection
		}
		if err != nil {
			return fmt.Errorf("redisstore: await: %w", err)
		}
		left := duration(number(reply))
		if left <= 0 {
			return nil
		}
		if err := w.sleep(ctx, min(left, look)); err != nil {
			return err
		}
	}
}

// waiters wakes those who wait for a key's end.
type waiters struct {
	client  redis.UniversalClient
	channel string

	// A message may be lost (the connection broke, the server failed over), so each
	// waiter looks by itself as well, ever less often.
	firstLook, lastLook time.Duration

	// linger is how long the subscription outlives its last waiter, so that a trickle
	// of them does not connect anew each time.
	linger time.Duration

	mu        sync.Mutex
	listening bool
	byName    map[string]map[*waiter]struct{}
}

type waiter struct {
	name string
	wake chan struct{} // holds one: there is a reason to look
}

func newWaiters(client redis.UniversalClient, channel string) *waiters {
	return &waiters{
		client:    client,
		channel:   channel,
		firstLook: 250 * time.Millisecond,
		lastLook:  time.Second,
		linger:    5 * time.Second,
		byName:    make(map[string]map[*waiter]struct{}),
	}
}

func (ws *waiters) join(name string) *waiter {
	w := &waiter{name: name, wake: make(chan struct{}, 1)}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.byName[name] == nil {
		ws.byName[name] = make(map[*waiter]struct{})
	}
	ws.byName[name][w] = struct{}{}
	if !ws.listening {
		ws.listening = true
		go ws.listen()
	}
	return w
}

func (ws *waiters) leave(w *waiter) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	delete(ws.byName[w.name], w)
	if len(ws.byName[w.name]) == 0 {
		delete(ws.byName, w.name)
	}
}

// listen runs while somebody waits. go-redis connects and subscribes again by itself.
func (ws *waiters) listen() {
	ctx := context.Background()
	sub := ws.client.Subscribe(ctx)
	defer sub.Close()
	_ = sub.Subscribe(ctx, ws.channel) // an error here is one more reason to connect again

	idle := time.NewTicker(ws.linger)
	defer idle.Stop()
	messages := sub.ChannelWithSubscriptions()
	for {
		select {
		case m, open := <-messages:
			if !open { // the client is closed
				ws.stop()
				return
			}
			switch m := m.(type) {
			case *redis.Message:
				ws.wake(m.Payload)
			case *redis.Subscription:
				ws.wakeAll() // what was announced before went unheard
			}
		case <-idle.C:
			if ws.stopIfIdle() {
				return
			}
		}
	}
}

func (ws *waiters) stopIfIdle() bool {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.listening = len(ws.byName) > 0
	return !ws.listening
}

func (ws *waiters) stop() {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.listening = false
}

func (ws *waiters) wake(name string) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for w := range ws.byName[name] {
		w.signal()
	}
}

func (ws *waiters) wakeAll() {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for _, group := range ws.byName {
		for w := range group {
			w.signal()
		}
	}
}

func (w *waiter) signal() {
	select {
	case w.wake <- struct{}{}:
	default: // told already
	}
}

// sleep waits until w is woken or d is over, or returns ctx's error as soon as ctx ends.
func (w *waiter) sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-w.wake:
	case <-timer.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}
