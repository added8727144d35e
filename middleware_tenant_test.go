package idempotency_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency"
)

func unknownTenant(*http.Request) (string, error) { return "", errors.New("no session") }

func tenantHeader(r *http.Request) (string, error) { return r.Header.Get("Tenant"), nil }

func TestUnknownTenantIsRefused(t *testing.T) {
	onEachProtocol(t, func(t *testing.T, listen listenFunc) {
		for name, tenant := range map[string]func(*http.Request) (string, error){
			"error":           unknownTenant,
			"empty":           tenantHeader,
			"value and error": func(*http.Request) (string, error) { return "t", errors.New("expired") },
		} {
			t.Run(name, func(t *testing.T) {
				store, h := newFaultStore("Reserve"), &charges{}
				p := listen(newFixture(t, store, func(c *idempotency.Config) { c.Tenant = tenant }).Handler(h))
				a := p.post(t, "k", "{}")
				requireProblem(t, a, http.StatusForbidden, "idempotency_tenant_unknown")
				require.NotContains(t, a.Body, "session")
				require.Zero(t, h.Load())
				require.Empty(t, store.called())
			})
		}
	})
}

// What a Tenant error wraps does not change the answer.
func TestTenantErrorThatWrapsAnotherSentinel(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil, func(c *idempotency.Config) {
		c.Tenant = func(*http.Request) (string, error) { return "", idempotency.ErrKeyMissing }
	})
	requireProblem(t, call(f.Handler(&charges{}), request("k", "")), http.StatusForbidden, "idempotency_tenant_unknown")
	require.Equal(t, http.StatusForbidden, f.event(t).Status)
}

func TestTenantsShareNothing(t *testing.T) {
	onEachProtocol(t, func(t *testing.T, listen listenFunc) {
		h := &charges{}
		p := listen(newFixture(t, nil, func(c *idempotency.Config) { c.Tenant = tenantHeader }).Handler(h))
		first := p.post(t, "k", "{}", "Tenant", "a")
		second := p.post(t, "k", "{}", "Tenant", "b")
		require.False(t, second.replayed())
		require.NotEqual(t, first.Body, second.Body)
		require.Equal(t, first.Body, p.post(t, "k", "{}", "Tenant", "a").Body)
		require.Equal(t, second.Body, p.post(t, "k", "{}", "Tenant", "b").Body)
		require.EqualValues(t, 2, h.Load())
	})
}

// The parts of a key are never joined, so no choice of them makes two keys meet.
func TestTenantEndpointAndKeyDoNotRunTogether(t *testing.T) {
	t.Parallel()
	h := &charges{}
	m := newFixture(t, nil, func(c *idempotency.Config) {
		c.Tenant = tenantHeader
		c.Endpoint = func(r *http.Request) string { return r.Header.Get("Endpoint") }
	}).Handler(h)
	for _, parts := range [][3]string{
		{"a", "b", "c"}, {"ab", "", "c"}, {"a", "", "bc"}, {"a", "bc", "c"}, {"a:b", "c", "c"}, {"a", "b:c", "c"}, {"a", "b", ":c"},
	} {
		a := call(m, request(parts[2], "{}", "Tenant", parts[0], "Endpoint", parts[1]))
		require.False(t, a.replayed(), parts)
		require.Equal(t, http.StatusCreated, a.Status, parts)
	}
	require.EqualValues(t, 7, h.Load())
}

func TestEndpointIsMethodAndPath(t *testing.T) {
	onEachProtocol(t, func(t *testing.T, listen listenFunc) {
		store, h := newFaultStore("Reserve"), &charges{}
		p := listen(newFixture(t, store).Handler(h))
		for _, target := range []string{"POST /charges", "PATCH /charges", "POST /refunds", "POST /a%2Fb", "POST /a/b", "POST /%C3%BC"} {
			method, path, _ := strings.Cut(target, " ")
			for _, replayed := range []bool{false, true} {
				r := p.request(t, "k", strings.NewReader("{}"))
				u, err := r.URL.Parse(path)
				require.NoError(t, err)
				r.Method, r.URL = method, u
				a, err := p.do(r)
				require.NoError(t, err)
				require.Equal(t, http.StatusCreated, a.Status)
				require.Equal(t, replayed, a.replayed(), target)
				calls := store.called("Reserve")
				require.Equal(t, target, calls[len(calls)-1].claim.Key.Endpoint)
			}
		}
	})
}

func TestAnyEndpoint(t *testing.T) {
	onEachProtocol(t, func(t *testing.T, listen listenFunc) {
		store := newFaultStore("Reserve")
		p := listen(newFixture(t, store, func(c *idempotency.Config) { c.Endpoint = idempotency.AnyEndpoint }).Handler(&charges{}))
		require.Equal(t, http.StatusCreated, p.post(t, "k", "{}").Status)
		require.Equal(t, idempotency.Key{Tenant: "single", Value: "k"}, store.called()[0].claim.Key)
		r := p.request(t, "k", strings.NewReader("{}"))
		r.URL.Path = "/refunds"
		a, err := p.do(r)
		require.NoError(t, err)
		requireProblem(t, a, http.StatusUnprocessableEntity, "idempotency_key_reused")
	})
}

// A text column holds neither NUL nor invalid UTF-8, so the store is not asked to.
func TestTenantOrEndpointThatIsNotText(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"a\x00b", "a\xffb", "\xed\xa0\x80"} {
		for _, change := range []func(*idempotency.Config){
			func(c *idempotency.Config) { c.Tenant = func(*http.Request) (string, error) { return bad, nil } },
			func(c *idempotency.Config) { c.Endpoint = func(*http.Request) string { return bad } },
		} {
			store, h := newFaultStore("Reserve"), &charges{}
			f := newFixture(t, store, change)
			requireProblem(t, call(f.Handler(h), request("k", "{}")), http.StatusInternalServerError, "internal_error")
			require.Zero(t, h.Load())
			require.Empty(t, store.called())
			require.Equal(t, idempotency.Rejected, f.event(t).Outcome)
			require.Contains(t, f.logs.String(), `"level":"ERROR"`, "it is the developer's mistake")
		}
	}
}

// Tenant, endpoint and key are looked at before the body is read: a refusal costs no
// upload.
func TestRefusalReadsNoBody(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*idempotency.Config, *http.Request){
		"tenant": func(c *idempotency.Config, _ *http.Request) { c.Tenant = unknownTenant },
		"key":    func(_ *idempotency.Config, r *http.Request) { r.Header.Del("Idempotency-Key") },
		"check": func(c *idempotency.Config, _ *http.Request) {
			c.CheckKey = func(string) error { return errors.New("no") }
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := request("k", "{}")
			r.Body = unreadable{t}
			h := newFixture(t, nil, func(c *idempotency.Config) { change(c, r) }).Handler(&charges{})
			require.GreaterOrEqual(t, call(h, r).Status, 400)
		})
	}
}

// unreadable is a body that nobody may read.
type unreadable struct{ t *testing.T }

func (u unreadable) Read([]byte) (int, error) {
	u.t.Error("the body was read")
	return 0, errors.New("unreadable")
}

func (unreadable) Close() error { return nil }
