package chaos

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency/internal/pgproxy"
)

var (
	duration = flag.Duration("chaos.for", 5*time.Second, "how long things are broken")
	seed     = flag.Uint64("chaos.seed", 0, "what is broken when; 0 takes a new one")
)

const (
	processes = 3
	clients   = 16
)

// audit counts what the ledger's primary key would hide: every charge that a committed
// transaction tried to book, also one that was there already.
const audit = `
	CREATE TABLE audit (id text, order_id text);
	CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN INSERT INTO audit VALUES (NEW.id, NEW.order_id); RETURN NEW; END $$;
	CREATE TRIGGER audit BEFORE INSERT ON charges FOR EACH ROW EXECUTE FUNCTION audit();`

// mayhem is a run of the payments service on ground that gives way.
type mayhem struct {
	db       *postgres
	proxy    *pgproxy.Proxy
	programs []*program

	requests, kills, restarts, cuts, lostCommits atomic.Int64

	mu      sync.Mutex
	answers map[string][]answer // final ones, by key
}

func TestChaos(t *testing.T) {
	if *seed == 0 {
		*seed = rand.Uint64()
	}
	t.Logf("seed %d", *seed)
	m := &mayhem{db: startPostgres(t), answers: make(map[string][]answer)}
	m.proxy = pgproxy.Start(t, m.db.url())
	binary := build(t)
	for range processes {
		p := newProgram(t, binary, "DATABASE_URL="+m.proxy.URL(), "LEASE=1s", "AFTER_CRASH=rerun", "CARD_NETWORK_LATENCY=5ms")
		p.ready(t)
		m.programs = append(m.programs, p)
	}
	conn, err := pgx.Connect(t.Context(), m.db.url())
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), audit)
	require.NoError(t, err)
	require.NoError(t, conn.Close(t.Context()))

	breaking, stop := context.WithTimeout(t.Context(), *duration)
	defer stop()
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() { m.buy(t, breaking, i, source(uint64(i))) })
	}
	wg.Go(func() { m.disturb(t, breaking) })
	wg.Wait()
	m.judge(t)
}

func source(n uint64) *rand.Rand { return rand.New(rand.NewPCG(*seed, n)) }

// buy makes one order after the other, each under one key until there is a final answer,
// and asks once more for that. What was begun is finished after the breaking has ended.
func (m *mayhem) buy(t *testing.T, breaking context.Context, client int, random *rand.Rand) {
	c := &http.Client{Timeout: 10 * time.Second, Transport: new(http.Transport)}
	defer c.CloseIdleConnections()
	for n := 0; breaking.Err() == nil; n++ {
		name := fmt.Sprintf("client-%d-order-%d", client, n)
		var got []answer
		for deadline := time.Now().Add(2 * time.Minute); len(got) < 2; {
			if time.Now().After(deadline) {
				t.Errorf("%s: no final answer", name)
				return
			}
			m.requests.Add(1)
			a, err := m.programs[random.IntN(processes)].charge(t.Context(), c, name, name)
			if err == nil && final(a.status) {
				got = append(got, a)
				continue
			}
			time.Sleep(time.Duration(random.IntN(50)) * time.Millisecond) // backoff
		}
		m.mu.Lock()
		m.answers[name] = got
		m.mu.Unlock()
	}
}

func final(status int) bool {
	return status != http.StatusConflict && status != http.StatusServiceUnavailable
}

// disturb breaks something at every step, until breaking ends; then it mends all.
func (m *mayhem) disturb(t *testing.T, breaking context.Context) {
	random := source(1 << 32)
	commits := source(1 << 33)
	var mu sync.Mutex
	m.proxy.OnCommit(func() pgproxy.Fate {
		mu.Lock()
		defer mu.Unlock()
		fate := pgproxy.Pass
		switch commits.IntN(40) {
		case 0:
			fate = pgproxy.LoseReply
		case 1:
			fate = pgproxy.LoseCommit
		}
		if fate != pgproxy.Pass {
			m.lostCommits.Add(1)
		}
		return fate
	})
	for breaking.Err() == nil {
		switch random.IntN(12) {
		case 0:
			m.db.restart(t)
			m.restarts.Add(1)
		case 1, 2, 3:
			m.cuts.Add(int64(m.proxy.Cut()))
		default:
			p := m.programs[random.IntN(processes)]
			p.kill()
			m.kills.Add(1)
			p.start()
		}
		time.Sleep(time.Duration(50+random.IntN(200)) * time.Millisecond)
	}
	m.proxy.OnCommit(nil)
	for _, p := range m.programs {
		p.kill()
		p.start()
	}
}

func (m *mayhem) judge(t *testing.T) {
	conn, err := pgx.Connect(t.Context(), m.db.url())
	require.NoError(t, err)
	defer conn.Close(t.Context())
	rows, err := conn.Query(t.Context(), `SELECT order_id, count(*), count(*) FILTER (WHERE EXISTS (
		SELECT FROM charges WHERE charges.id = audit.id)) FROM audit GROUP BY order_id`)
	require.NoError(t, err)
	booked := make(map[string]int)
	var order string
	var times, kept, doubles int
	_, err = pgx.ForEachRow(rows, []any{&order, &times, &kept}, func() error {
		booked[order] = times
		if times != 1 || kept != 1 {
			doubles++
			t.Errorf("%s: booked %d times, in the ledger %d times", order, times, kept)
		}
		return nil
	})
	require.NoError(t, err)

	lost := 0
	for key, got := range m.answers {
		if got[0].status != http.StatusCreated || booked[key] == 0 {
			lost++
			t.Errorf("%s: answered %v, booked %d times", key, got[0], booked[key])
		}
		if got[0] != got[1] {
			t.Errorf("%s: two answers:\n%v\n%v", key, got[0], got[1])
		}
	}
	for key := range booked {
		if _, ok := m.answers[key]; !ok {
			t.Errorf("%s: booked, though nobody was answered", key)
		}
	}
	t.Logf("charges %d, requests %d, kills %d, restarts %d, cut connections %d, lost commits %d, doubles %d, lost %d",
		len(booked), m.requests.Load(), m.kills.Load(), m.restarts.Load(), m.cuts.Load(), m.lostCommits.Load(), doubles, lost)
	require.NotEmpty(t, booked)
	require.NotZero(t, m.kills.Load()+m.restarts.Load()+m.cuts.Load())
}
