// Package pgproxy stands between a client and PostgreSQL and breaks the connection at
// the moment that hurts: around a COMMIT.
package pgproxy

import (
	"encoding/binary"
	"io"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
)

// Fate is what happens to a COMMIT.
type Fate int

const (
	Pass       Fate = iota
	LoseReply       // the server commits, then the connection dies
	LoseCommit      // the connection dies before the server hears of it
)

// Proxy is a running proxy. Its methods are safe for concurrent use.
type Proxy struct {
	listener net.Listener
	server   string
	url      url.URL

	mu     sync.Mutex
	fate   func() Fate
	away   bool
	conns  map[net.Conn]struct{}
	closed sync.WaitGroup
}

// Start runs a proxy in front of the server of databaseURL until the test ends.
func Start(t testing.TB, databaseURL string) *Proxy {
	t.Helper()
	u, err := url.Parse(databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{listener: listener, server: u.Host, url: *u, conns: make(map[net.Conn]struct{})}
	p.url.Host = listener.Addr().String()
	p.closed.Go(p.accept)
	t.Cleanup(func() {
		listener.Close()
		p.Cut()
		p.closed.Wait()
	})
	return p
}

// URL leads to the database through the proxy.
func (p *Proxy) URL() string { return p.url.String() }

// OnCommit decides what happens to each COMMIT from now on.
func (p *Proxy) OnCommit(fate func() Fate) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fate = fate
}

// SetAway makes the database unreachable, or reachable again. Connections that are open
// are not touched.
func (p *Proxy) SetAway(away bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.away = away
}

// Cut breaks every open connection, and returns how many clients that were.
func (p *Proxy) Cut() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.conns) / 2
	for conn := range p.conns {
		conn.Close()
	}
	return n
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := p.dial()
		if err != nil {
			client.Close()
			continue
		}
		p.track(client, server)
		c := &connection{proxy: p, client: client, server: server}
		p.closed.Go(c.fromClient)
		p.closed.Go(c.fromServer)
	}
}

func (p *Proxy) dial() (net.Conn, error) {
	p.mu.Lock()
	away := p.away
	p.mu.Unlock()
	if away {
		return nil, net.ErrClosed
	}
	return net.Dial("tcp", p.server)
}

func (p *Proxy) track(conns ...net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range conns {
		p.conns[conn] = struct{}{}
	}
}

func (p *Proxy) nextFate() Fate {
	p.mu.Lock()
	fate := p.fate
	p.mu.Unlock()
	if fate == nil {
		return Pass
	}
	return fate()
}

type connection struct {
	proxy          *Proxy
	client, server net.Conn

	mu        sync.Mutex
	loseReply bool
}

func (c *connection) close() {
	c.client.Close()
	c.server.Close()
	c.proxy.mu.Lock()
	defer c.proxy.mu.Unlock()
	delete(c.proxy.conns, c.client)
	delete(c.proxy.conns, c.server)
}

// fromClient passes messages on one by one, so as to see a COMMIT before the server
// does.
func (c *connection) fromClient() {
	defer c.close()
	for started := false; ; {
		message, err := readMessage(c.client, started)
		if err != nil {
			return
		}
		if started && isCommit(message) {
			switch c.proxy.nextFate() {
			case LoseCommit:
				return
			case LoseReply:
				c.mu.Lock()
				c.loseReply = true
				c.mu.Unlock()
			}
		}
		// What a client sends before its start (a cancel request) looks the same.
		started = true
		if _, err := c.server.Write(message); err != nil {
			return
		}
	}
}

func (c *connection) fromServer() {
	defer c.close()
	buf := make([]byte, 32<<10)
	for {
		n, err := c.server.Read(buf)
		if err != nil {
			return
		}
		c.mu.Lock()
		lose := c.loseReply
		c.mu.Unlock()
		if lose { // the server has answered, so it has committed
			return
		}
		if _, err := c.client.Write(buf[:n]); err != nil {
			return
		}
	}
}

// readMessage reads one message of the frontend protocol: a type, but for the first one,
// and a length that counts itself.
func readMessage(r io.Reader, typed bool) ([]byte, error) {
	head := 4
	if typed {
		head = 5
	}
	message := make([]byte, head)
	if _, err := io.ReadFull(r, message); err != nil {
		return nil, err
	}
	length := binary.BigEndian.Uint32(message[head-4:])
	if length < 4 || length > 64<<20 {
		return nil, io.ErrUnexpectedEOF
	}
	message = append(message, make([]byte, length-4)...)
	_, err := io.ReadFull(r, message[head:])
	return message, err
}

// isCommit knows the simple query that pgx commits with.
func isCommit(message []byte) bool {
	return message[0] == 'Q' && strings.EqualFold(strings.TrimRight(string(message[5:]), "\x00; "), "commit")
}
