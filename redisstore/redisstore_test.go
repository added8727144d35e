package redisstore

import (
	"context"
	"errors"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/seed-2d1e5f61/idempotency"
	"github.com/seed-2d1e5f61/idempotency/redisstore/internal/testredis"
)

func open(t testing.TB, client redis.UniversalClient, cfg Config) *Store {
	t.Helper()
	s, err := New(client, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// newClaim is a first attempt at a key of its own.
func newClaim() idempotency.Claim {
	return idempotency.Claim{
		Key:         idempotency.Key{Tenant: "acme", Endpoint: "POST /charges", Value: idempotency.NewKey()},
		Fingerprint: idempotency.Fingerprint{1, 2, 3},
		Token:       uuid.New(),
		Lease:       time.Minute,
		TTL:         time.Hour,
	}
}

// rival is another attempt at c's key.
func rival(c idempotency.Claim) idempotency.Claim {
	c.Token = uuid.New()
	return c
}

func reserveAs(t testing.TB, s idempotency.Store, c idempotency.Claim, want idempotency.State) idempotency.Record {
	t.Helper()
	rec, err := s.Reserve(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	if rec.State != want {
		t.Fatalf("Reserve found state %v, want %v", rec.State, want)
	}
	return rec
}

func completeOf(t testing.TB, s idempotency.Store, c idempotency.Claim) {
	t.Helper()
	if err := s.Complete(context.Background(), c, created); err != nil {
		t.Fatal(err)
	}
}

var created = idempotency.Response{
	Status:   http.StatusCreated,
	Header:   http.Header{"Content-Type": {"application/json"}, "Link": {"</a>", "</b>"}, "X-Empty": {}},
	Appended: []string{"Link"},
	Body:     []byte("{\"id\":\"ch_1\"}\x00\xff\r\n"),
}

func TestNewReportsEveryProblem(t *testing.T) {
	client := redis.NewClient(&redis.Options{ReadTimeout: 100 * time.Millisecond})
	defer client.Close()
	_, err := New(client, Config{Prefix: "{all}", MinReplicas: 1, ReplicaTimeout: time.Second})
	if err == nil || !strings.Contains(err.Error(), "Prefix") || !strings.Contains(err.Error(), "ReadTimeout") {
		t.Errorf("a brace and a timeout that is too long: %v", err)
	}
	for _, client := range []redis.UniversalClient{nil, (*redis.Client)(nil), (*redis.ClusterClient)(nil)} {
		_, err = New(client, Config{MinReplicas: -1, ReplicaTimeout: time.Microsecond})
		for _, problem := range []string{"client is", "MinReplicas", "ReplicaTimeout"} {
			if err == nil || !strings.Contains(err.Error(), problem) {
				t.Errorf("the problem with %s is not in: %v", problem, err)
			}
		}
	}

	ring := redis.NewRing(&redis.RingOptions{})
	defer ring.Close()
	if _, err := New(ring, Config{}); err == nil {
		t.Error("a Ring is accepted, which takes keys to another server when theirs is away")
	}
	pipeliner, err := client.AutoPipeline()
	if err != nil {
		t.Fatal(err)
	}
	defer pipeliner.Close()
	if _, err := New(pipeliner, Config{MinReplicas: 1, ReplicaTimeout: time.Millisecond}); err == nil {
		t.Error("MinReplicas is accepted with a client that cannot send WAIT behind a script")
	}
}

// Names of keys are all that keeps two records apart.
func TestNoTwoKeysShareAName(t *testing.T) {
	s := open(t, redis.NewClient(&redis.Options{}), Config{})
	names := make(map[string]idempotency.Key)
	for _, key := range []idempotency.Key{
		{Tenant: "a", Endpoint: "b", Value: "c"},
		{Tenant: "ab", Endpoint: "", Value: "c"},
		{Tenant: "", Endpoint: "ab", Value: "c"},
		{Tenant: "a", Endpoint: "", Value: "bc"},
		{Tenant: "a:b", Endpoint: "c"},
		{Tenant: "a", Endpoint: "b:c"},
		{Tenant: "a", Endpoint: "b", Value: "C"},
		{Tenant: "a\x00b", Endpoint: "c"},
	} {
		name := s.name(key)
		if other, taken := names[name]; taken {
			t.Errorf("%+v and %+v share a name", key, other)
		}
		names[name] = key
	}
	// printf '\0\0\0\0\0\0\0\1a\0\0\0\0\0\0\0\1b\0\0\0\0\0\0\0\1c' | sha256sum
	const golden = "idempotency:bd735517dea8b04bba91d58ed956ea9ce3296d2f39b4a6e1103884815dd71d0d"
	if name := s.name(idempotency.Key{Tenant: "a", Endpoint: "b", Value: "c"}); name != golden {
		t.Errorf("records made by earlier versions are out of reach: %s", name)
	}
}

// An operator who has a log line finds the record by it.
func TestTheNameBeginsWithTheLoggedHash(t *testing.T) {
	t.Parallel()
	client := testredis.Start(t).Client(t)
	var event idempotency.Event
	m, err := idempotency.New(open(t, client, Config{Prefix: "p:"}), idempotency.Config{
		Tenant:  idempotency.SingleTenant,
		Observe: func(_ context.Context, e idempotency.Event) { event = e },
	})
	if err != nil {
		t.Fatal(err)
	}
	req := httptest.NewRequest(http.MethodPost, "/charges", nil)
	req.Header.Set("Idempotency-Key", "k-1")
	m.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})).ServeHTTP(httptest.NewRecorder(), req)
	names, err := client.Keys(t.Context(), "p:"+event.KeyHash+"*").Result()
	if err != nil || len(names) != 1 {
		t.Fatalf("records under %q: %v, %v", event.KeyHash, names, err)
	}
	if key := client.HGet(t.Context(), names[0], "key").Val(); key != "k-1" {
		t.Errorf("the record says it is of key %q", key)
	}
}

func TestALeaseIsNeverShorterThanAsked(t *testing.T) {
	const longest = math.MaxInt64
	for d, want := range map[time.Duration]int64{
		0: 0, 1: 1, time.Millisecond: 1, time.Millisecond + 1: 2, longest: longest/1_000_000 + 1,
	} {
		if got := millis(d); got != want {
			t.Errorf("%v is sent as %d ms, want %d", d, got, want)
		}
	}
	if got := duration(millis(longest)); got < longest-time.Millisecond {
		t.Errorf("the longest lease comes back as %v", got)
	}
	if got := duration(millis(-time.Second)); got != 0 {
		t.Errorf("a lease that is over comes back as %v", got)
	}
}

// trips counts what a client sends: commands alone, and pipelines.
type trips struct{ commands, pipelines atomic.Int64 }

func (n *trips) DialHook(next redis.DialHook) redis.DialHook { return next }

func (n *trips) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		n.commands.Add(1)
		return next(ctx, cmd)
	}
}

func (n *trips) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		n.pipelines.Add(1)
		return next(ctx, cmds)
	}
}

func TestEachMethodIsOneRoundTrip(t *testing.T) {
	t.Parallel()
	client := testredis.Start(t).Client(t)
	for replicas := range 2 { // there are none, so with 1 each Reserve and Complete fails after its one trip
		s := open(t, client, Config{MinReplicas: replicas, ReplicaTimeout: time.Millisecond})
		cycle := func() int {
			c, d := newClaim(), newClaim()
			_, _ = s.Reserve(t.Context(), c)
			_ = s.Extend(t.Context(), c)
			_ = s.Complete(t.Context(), c, created)
			reserveAs(t, s, rival(c), idempotency.Completed)
			_, _ = s.Reserve(t.Context(), d)
			_ = s.Release(t.Context(), d)
			return 6
		}
		cycle() // the server learns the scripts
		counter := new(trips)
		client.AddHook(counter)
		calls := cycle()
		if sent := int(counter.commands.Load() + counter.pipelines.Load()); sent != calls {
			t.Errorf("MinReplicas %d: %d calls took %d round trips", replicas, calls, sent)
		}
	}
}

// Nothing sweeps: the server itself must keep a record exactly as long as it is alive.
func TestTheServerForgetsDeadRecordsAlone(t *testing.T) {
	t.Parallel()
	client := testredis.Start(t).Client(t)
	s := open(t, client, Config{})
	expect := func(c idempotency.Claim, when string, want time.Duration) {
		t.Helper()
		left, err := client.PTTL(t.Context(), s.name(c.Key)).Result()
		if err != nil || left > want || left < want-10*time.Second {
			t.Errorf("%s the server keeps the record for %v more, want %v (%v)", when, left, want, err)
		}
	}

	c := newClaim()
	c.Lease, c.TTL = time.Minute, time.Hour
	reserveAs(t, s, c, idempotency.Acquired)
	expect(c, "reserved,", time.Hour)
	c.Lease = 2 * time.Hour
	if err := s.Extend(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	expect(c, "with a lease that outlasts the TTL", 2*time.Hour)
	completeOf(t, s, c)
	expect(c, "completed,", time.Hour)

	d := newClaim()
	reserveAs(t, s, d, idempotency.Acquired)
	if err := s.Release(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	if n := client.Exists(t.Context(), s.name(d.Key)).Val(); n != 0 {
		t.Error("a released key is still there")
	}
}

// A replay must not cost the replicas and the append-only file anything.
func TestAReplayWritesNothing(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	s := open(t, server.Client(t), Config{})
	c := newClaim()
	reserveAs(t, s, c, idempotency.Acquired)
	before := changes(t, server)
	reserveAs(t, s, rival(c), idempotency.InFlight)
	completeOf(t, s, c)
	if changes(t, server) == before {
		t.Fatal("a completion is not seen to write, so this test sees nothing")
	}
	before = changes(t, server)
	reserveAs(t, s, rival(c), idempotency.Completed)
	other := rival(c)
	other.Fingerprint[0]++
	if rec := reserveAs(t, s, other, idempotency.Completed); rec.Response.Status != 0 {
		t.Error("the response is sent for another fingerprint")
	}
	if after := changes(t, server); after != before {
		t.Errorf("two replays made %s changes before, %s after", before, after)
	}
}

func changes(t testing.TB, server *testredis.Server) string {
	t.Helper()
	info, _ := parseInfo(server.Do(t, "INFO", "persistence").(string))
	return info["rdb_changes_since_last_save"]
}

// strange answers every command with the same value.
type strange struct {
	trips
	reply any
}

func (h *strange) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(_ context.Context, cmd redis.Cmder) error {
		cmd.(*redis.Cmd).SetVal(h.reply)
		return nil
	}
}

// Whatever speaks Redis's protocol and is none must not be taken to give a key away, or
// to have said that a claim is lost.
func TestAReplyOfAnotherFormIsAnError(t *testing.T) {
	for _, reply := range []any{nil, "OK", int64(2), []any{}, []any{int64(1), int64(1), int64(1), int64(1), "short"}} {
		client := redis.NewClient(&redis.Options{})
		defer client.Close()
		client.AddHook(&strange{reply: reply})
		s := open(t, client, Config{})
		if rec, err := s.Reserve(t.Context(), newClaim()); err == nil {
			t.Errorf("%v is taken for %+v", reply, rec)
		}
		if err := s.Complete(t.Context(), newClaim(), created); err == nil || errors.Is(err, idempotency.ErrClaimLost) {
			t.Errorf("a completion is answered %v: %v", reply, err)
		}
	}
}

func TestFlushedScriptsHeal(t *testing.T) {
	t.Parallel()
	primary, _ := pair(t)
	for _, cfg := range []Config{{}, patient} {
		s := open(t, primary.Client(t), cfg)
		c := newClaim()
		reserveAs(t, s, c, idempotency.Acquired)
		primary.Do(t, "SCRIPT", "FLUSH")
		completeOf(t, s, c)
		primary.Do(t, "SCRIPT", "FLUSH")
		reserveAs(t, s, rival(c), idempotency.Completed)
	}
}

// pair starts a server and a replica of it that is in step.
func pair(t testing.TB) (primary, replica *testredis.Server) {
	t.Helper()
	primary, replica = testredis.Start(t), testredis.Start(t)
	replica.Replicate(t, primary)
	return primary, replica
}
