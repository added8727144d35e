package idempotency_test

import (
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency"
)

func TestNewTakesTheLeastConfig(t *testing.T) {
	t.Parallel()
	m, err := idempotency.New(&idempotency.MemoryStore{}, idempotency.Config{Tenant: idempotency.SingleTenant})
	require.NoError(t, err)
	require.NotNil(t, m)
}

func TestNewTakesEveryField(t *testing.T) {
	t.Parallel()
	_, err := idempotency.New(&idempotency.MemoryStore{}, idempotency.Config{
		Tenant:           idempotency.SingleTenant,
		Endpoint:         idempotency.AnyEndpoint,
		Methods:          []string{"POST", "PURGE"},
		Header:           "x-key",
		KeyOptional:      true,
		StrictKey:        true,
		CheckKey:         idempotency.CheckUUID,
		Fingerprint:      idempotency.FingerprintJSON,
		MaxRequestBytes:  1,
		Lease:            time.Millisecond,
		HandlerTimeout:   1,
		StoreTimeout:     time.Millisecond,
		AfterCrash:       idempotency.Rerun,
		Wait:             1,
		TTL:              time.Millisecond,
		Keep:             func(int) bool { return true },
		ReplayHeaders:    []string{"x-anything", "Location"},
		MaxResponseBytes: 1,
		FailOpen:         true,
		ReplayedHeader:   "x-replay",
		DocsURL:          "https://example.com/docs?a=1#keys",
		ErrorHandler:     idempotency.WriteError,
	})
	require.NoError(t, err)
}

// Each problem is found, alone and among all the others.
func TestNewFindsEveryProblem(t *testing.T) {
	t.Parallel()
	problems := map[string]struct {
		spoil func(*idempotency.Config)
		say   []string
	}{
		"tenant":             {func(c *idempotency.Config) { c.Tenant = nil }, []string{"Tenant"}},
		"method":             {func(c *idempotency.Config) { c.Methods = []string{"POST", "", "GE T"} }, []string{`""`, `"GE T"`}},
		"header":             {func(c *idempotency.Config) { c.Header = "Idempotency Key" }, []string{"Header"}},
		"replayed header":    {func(c *idempotency.Config) { c.ReplayedHeader = "replayed:" }, []string{"ReplayedHeader"}},
		"request bytes":      {func(c *idempotency.Config) { c.MaxRequestBytes = -1 }, []string{"MaxRequestBytes"}},
		"response bytes":     {func(c *idempotency.Config) { c.MaxResponseBytes = -1 }, []string{"MaxResponseBytes"}},
		"lease":              {func(c *idempotency.Config) { c.Lease = -1 }, []string{"Lease is negative"}},
		"handler timeout":    {func(c *idempotency.Config) { c.HandlerTimeout = -1 }, []string{"HandlerTimeout"}},
		"store timeout":      {func(c *idempotency.Config) { c.StoreTimeout = -1 }, []string{"StoreTimeout"}},
		"wait":               {func(c *idempotency.Config) { c.Wait = -1 }, []string{"Wait"}},
		"TTL":                {func(c *idempotency.Config) { c.TTL = -1 }, []string{"TTL is negative"}},
		"crash":              {func(c *idempotency.Config) { c.AfterCrash = 2 }, []string{"AfterCrash"}},
		"replay header name": {func(c *idempotency.Config) { c.ReplayHeaders = []string{"A B"} }, []string{`"A B"`}},
		"docs":               {func(c *idempotency.Config) { c.DocsURL = "https://example.com/>; rel=x" }, []string{"DocsURL"}},
	}
	good := func() idempotency.Config { return idempotency.Config{Tenant: idempotency.SingleTenant} }
	all := good()
	for name, problem := range problems {
		cfg := good()
		problem.spoil(&cfg)
		problem.spoil(&all)
		m, err := idempotency.New(&idempotency.MemoryStore{}, cfg)
		require.Nil(t, m, name)
		requireProblems(t, err, len(problem.say), problem.say...)
	}
	_, err := idempotency.New(nil, all)
	say := []string{"store is nil"}
	for _, problem := range problems {
		say = append(say, problem.say...)
	}
	requireProblems(t, err, len(say), say...)
}

// A key is stored and compared: a field with a secret, or one that all requests share,
// must not become one by mistake.
func TestNewRefusesHeadersThatHoldNoKey(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"authorization", "Cookie", "Content-Type"} {
		_, err := idempotency.New(new(idempotency.MemoryStore), idempotency.Config{Tenant: idempotency.SingleTenant, Header: name})
		requireProblems(t, err, 1, "Header: "+name+" is no place for a key")
	}
}

func requireProblems(t *testing.T, err error, count int, say ...string) {
	t.Helper()
	require.Error(t, err)
	for _, text := range say {
		require.ErrorContains(t, err, text)
	}
	joined, ok := err.(interface{ Unwrap() []error })
	require.True(t, ok)
	require.Len(t, joined.Unwrap(), count, err)
	for _, line := range strings.Split(err.Error(), "\n") {
		require.True(t, strings.HasPrefix(line, "idempotency: "), line)
	}
}

// A store that cannot work is found at the start, not by the first request.
func TestNewRefusesStoresThatCannotWork(t *testing.T) {
	t.Parallel()
	for want, store := range map[string]idempotency.Store{
		"store is nil":                                             (*idempotency.MemoryStore)(nil),
		"store was not made by NewPostgresStore":                   (*idempotency.PostgresStore)(nil),
		"idempotency: New: store was not made by NewPostgresStore": &idempotency.PostgresStore{},
	} {
		_, err := idempotency.New(store, idempotency.Config{Tenant: idempotency.SingleTenant})
		requireProblems(t, err, 1, want)
	}
}

func TestHandlerRefusesNil(t *testing.T) {
	t.Parallel()
	m := newFixture(t, nil)
	for _, next := range []http.Handler{nil, http.HandlerFunc(nil)} {
		require.PanicsWithValue(t, "idempotency: Middleware.Handler: handler is nil", func() { m.Handler(next) })
	}
}

func TestNewRefusesAnEmptyListOfMethods(t *testing.T) {
	t.Parallel()
	_, err := idempotency.New(&idempotency.MemoryStore{}, idempotency.Config{
		Tenant: idempotency.SingleTenant, Methods: []string{},
	})
	require.ErrorContains(t, err, "Methods")
}

// Methods tell upper from lower case: a list of these would protect nothing, in silence.
func TestNewRefusesMethodsInLowerCase(t *testing.T) {
	t.Parallel()
	for _, method := range []string{"post", "Post", "pOST"} {
		_, err := idempotency.New(&idempotency.MemoryStore{}, idempotency.Config{
			Tenant: idempotency.SingleTenant, Methods: []string{"PATCH", method},
		})
		requireProblems(t, err, 1, "Methods", `"`+method+`"`, `"POST"`)
	}
}

// Each of the three fields has a meaning of its own.
func TestNewRefusesOneHeaderForTwoMeanings(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]idempotency.Config{
		"Header and ReplayedHeader are both":   {Header: "x-key", ReplayedHeader: "X-KEY"},
		"Header and ReplayedHeader are both I": {ReplayedHeader: "idempotency-key"},
		"Config.Header is Idempotency-Replay":  {Header: "idempotency-replay"},
		"ReplayedHeader is Idempotency-Replay": {ReplayedHeader: "Idempotency-REPLAY"},
	} {
		cfg.Tenant = idempotency.SingleTenant
		_, err := idempotency.New(&idempotency.MemoryStore{}, cfg)
		requireProblems(t, err, 1, name)
	}
}

func TestNewRefusesLeasesItCannotKeep(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]idempotency.Config{
		"TTL is shorter":                   {Lease: time.Minute, TTL: time.Minute - 1},
		"TTL is shorter than by default":   {TTL: 30*time.Second - 1},
		"lease is longer than TTL default": {Lease: 24*time.Hour + 1},
		"lease is too short to be renewed": {Lease: time.Millisecond - 1},
	} {
		cfg.Tenant = idempotency.SingleTenant
		_, err := idempotency.New(&idempotency.MemoryStore{}, cfg)
		requireProblems(t, err, 1, "Lease")
		require.Error(t, err, name)
	}
}

// Whoever writes 5 and means seconds is told: with so little time no store ever answers.
func TestNewRefusesAStoreTimeoutInNanoseconds(t *testing.T) {
	t.Parallel()
	_, err := idempotency.New(&idempotency.MemoryStore{}, idempotency.Config{Tenant: idempotency.SingleTenant, StoreTimeout: 5})
	requireProblems(t, err, 1, "StoreTimeout (5ns) is shorter than 1ms")
}

// Fields of one connection, one message or one moment would be wrong on a replay.
func TestNewRefusesHeadersThatCannotBeReplayed(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Connection", "TE", "Trailer",
		"Transfer-Encoding", "Upgrade", "Date", "Content-Length", "Set-Cookie", "set-cookie", "DATE",
	} {
		_, err := idempotency.New(&idempotency.MemoryStore{}, idempotency.Config{
			Tenant: idempotency.SingleTenant, ReplayHeaders: []string{"Location", name},
		})
		requireProblems(t, err, 1, "ReplayHeaders")
	}
}

func TestDefaultReplayHeadersAreAllowed(t *testing.T) {
	t.Parallel()
	_, err := idempotency.New(&idempotency.MemoryStore{}, idempotency.Config{
		Tenant: idempotency.SingleTenant, ReplayHeaders: idempotency.DefaultReplayHeaders,
	})
	require.NoError(t, err)
}

func TestNewStartsNothingAndAsksNothing(t *testing.T) {
	before := runtime.NumGoroutine()
	store := newFaultStore("Reserve")
	for range 100 {
		newFixture(t, store).Handler(&charges{})
	}
	require.LessOrEqual(t, runtime.NumGoroutine(), before)
	require.Empty(t, store.called())
}

// What New was given may change afterwards.
func TestNewKeepsItsOwnLists(t *testing.T) {
	t.Parallel()
	headers := []string{"Location"}
	h := newFixture(t, nil, func(c *idempotency.Config) { c.ReplayHeaders = headers }).Handler(&charges{})
	headers[0] = "Content-Type"
	call(h, request("k", "{}"))
	a := call(h, request("k", "{}"))
	require.Contains(t, a.Header, "Location")
	require.NotEqual(t, "application/json", a.Header.Get("Content-Type"))
}
