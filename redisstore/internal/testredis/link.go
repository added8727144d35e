package testredis

import (
	"net"
	"sync"
	"testing"
	"time"
)

// Link is a connection between servers that are some distance apart.
type Link struct {
	delay time.Duration

	mu    sync.Mutex
	cut   bool
	conns []net.Conn
}

// ReplicateFrom makes s a replica of primary over a link on which everything takes
// delay in each direction.
func (s *Server) ReplicateFrom(t testing.TB, primary *Server, delay time.Duration) *Link {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	link := &Link{delay: delay}
	t.Cleanup(func() { _ = listener.Close(); link.Cut() })
	go func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			if far, err := net.Dial("tcp", primary.Addr); err == nil {
				link.carry(near, far)
				link.carry(far, near)
			}
		}
	}()
	host, port, _ := net.SplitHostPort(listener.Addr().String())
	s.Do(t, "REPLICAOF", host, port)
	Eventually(t, "replica "+s.Addr+" is in step", func() bool { return primary.feeds(t.Context(), s) })
	return link
}

// Cut ends the link. What is on its way does not arrive.
func (l *Link) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = true
	for _, c := range l.conns {
		_ = c.Close()
	}
}

// carry takes what comes from one end to the other, late.
func (l *Link) carry(from, to net.Conn) {
	l.mu.Lock()
	l.conns = append(l.conns, from)
	if l.cut {
		_ = from.Close()
	}
	l.mu.Unlock()

	type parcel struct {
		due  time.Time
		data []byte
	}
	way := make(chan parcel, 1<<16)
	go func() {
		defer close(way)
		for {
			buf := make([]byte, 64<<10)
			n, err := from.Read(buf)
			if err != nil {
				return
			}
			way <- parcel{time.Now().Add(l.delay), buf[:n]}
		}
	}()
	go func() {
		defer to.Close()
		for p := range way {
			time.Sleep(time.Until(p.due))
			if !l.deliver(to, p.data) {
				return
			}
		}
	}()
}

func (l *Link) deliver(to net.Conn, data []byte) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut {
		return false
	}
	_, err := to.Write(data)
	return err == nil
}
