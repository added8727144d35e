package idempotency_test

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency"
)

// keyDigest is the digest that names a key where the key itself must not be shown: each
// part behind its length in 8 bytes.
func keyDigest(parts ...string) []byte {
	h := sha256.New()
	for _, part := range parts {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
		h.Write([]byte(part))
	}
	return h.Sum(nil)
}

var sentinels = []struct {
	err    error
	status int
	code   string
}{
	{idempotency.ErrKeyMissing, 400, "idempotency_key_missing"},
	{idempotency.ErrKeyInvalid, 400, "idempotency_key_invalid"},
	{idempotency.ErrKeyReused, 422, "idempotency_key_reused"},
	{idempotency.ErrKeyInFlight, 409, "idempotency_key_in_flight"},
	{idempotency.ErrOutcomeUnknown, 409, "idempotency_outcome_unknown"},
	{idempotency.ErrTenantUnknown, 403, "idempotency_tenant_unknown"},
	{idempotency.ErrBodyTooLarge, 413, "request_body_too_large"},
	{idempotency.ErrBodyRead, 400, "request_body_unreadable"},
	{idempotency.ErrUnavailable, 503, "idempotency_unavailable"},
	{idempotency.ErrClaimLost, 500, "internal_error"},
	{idempotency.ErrStoreFull, 500, "internal_error"},
	{idempotency.ErrNoResponse, 500, "internal_error"},
	{errors.New("pq: password authentication failed"), 500, "internal_error"},
}

func TestWriteErrorOfABareSentinel(t *testing.T) {
	t.Parallel()
	for _, s := range sentinels {
		for _, err := range []error{s.err, fmt.Errorf("charge 17: %w", s.err)} {
			w := httptest.NewRecorder()
			idempotency.WriteError(w, request("k", ""), err)
			a := readAnswer(w.Result())
			requireProblem(t, a, s.status, s.code)
			require.NotContains(t, a.Body, "charge 17")
			require.NotContains(t, a.Body, "password")
			require.NotContains(t, a.Body, "idempotency: ")
		}
	}
}

// Without Retry-After a client takes a 409 for final. A caller who knows better has set it.
func TestWriteErrorOfABareSentinelAsksToComeBack(t *testing.T) {
	t.Parallel()
	for _, s := range sentinels {
		for _, set := range []string{"", "9"} {
			w := httptest.NewRecorder()
			if set != "" {
				w.Header().Set("Retry-After", set)
			}
			idempotency.WriteError(w, request("k", ""), s.err)
			want := set
			if set == "" && (s.err == idempotency.ErrKeyInFlight || s.err == idempotency.ErrUnavailable) {
				want = "1"
			}
			require.Equal(t, want, w.Header().Get("Retry-After"), s.code)
		}
	}
}

// An answer of WriteError to an error that it does not know says nothing about what was
// done: it cannot know.
func TestWriteErrorClaimsNothingItDoesNotKnow(t *testing.T) {
	t.Parallel()
	w := httptest.NewRecorder()
	idempotency.WriteError(w, request("k", ""), errors.New("charged, then failed"))
	require.NotContains(t, w.Body.String(), "Nothing was done")
}

// What outer layers prepared for another representation is not true of a problem.
func TestWriteErrorReplacesTheRepresentation(t *testing.T) {
	t.Parallel()
	w := httptest.NewRecorder()
	h := w.Header()
	for _, name := range []string{"Content-Length", "Content-Encoding", "Content-Language", "Content-Disposition", "ETag", "Last-Modified"} {
		h.Set(name, "1")
	}
	h.Set("Content-Type", "text/html")
	h.Set("Cache-Control", "max-age=60")
	h.Set("X-Request-Id", "1")
	idempotency.WriteError(w, request("k", ""), idempotency.ErrKeyReused)
	require.Equal(t, http.Header{
		"Content-Type": {"application/problem+json"}, "Cache-Control": {"no-store"}, "X-Request-Id": {"1"},
	}, w.Header())
}

func TestDocsURL(t *testing.T) {
	onEachProtocol(t, func(t *testing.T, listen listenFunc) {
		const docs = "https://api.example/docs#keys"
		p := listen(outerLayer(newFixture(t, nil, func(c *idempotency.Config) { c.DocsURL = docs }).Handler(&charges{})))
		p.post(t, "k", "{}")
		for _, a := range []answer{p.post(t, "", "{}"), p.post(t, "k", "another")} {
			var problem map[string]any
			require.NoError(t, json.Unmarshal([]byte(a.Body), &problem))
			require.Equal(t, docs, problem["type"])
			links := a.Header["Link"]
			require.Equal(t, `<`+docs+`>; rel="describedby"`, links[len(links)-1])
			require.Len(t, links, 3, "an outer layer's stay")
		}
	})
}

// ErrorHandler gets an error that matches the sentinel, with Retry-After and Connection
// set, and may leave the answer to WriteError.
func TestErrorHandler(t *testing.T) {
	onEachProtocol(t, func(t *testing.T, listen listenFunc) {
		var told error
		var retryAfter string
		config := func(c *idempotency.Config) {
			c.DocsURL = "https://api.example/docs"
			c.ErrorHandler = func(w http.ResponseWriter, r *http.Request, err error) {
				told, retryAfter = err, w.Header().Get("Retry-After")
				if r.Header.Get("Delegate") != "" {
					idempotency.WriteError(w, r, fmt.Errorf("delegated: %w", err))
					return
				}
				w.WriteHeader(http.StatusTeapot)
			}
		}
		store := newFaultStore("Reserve", fullStore)
		p := listen(newFixture(t, store, config).Handler(&charges{}))

		a := p.post(t, "", "{}")
		require.Equal(t, http.StatusTeapot, a.Status)
		require.ErrorIs(t, told, idempotency.ErrKeyMissing)
		require.Empty(t, retryAfter)

		a = p.post(t, "k", "{}")
		require.Equal(t, http.StatusTeapot, a.Status)
		require.ErrorIs(t, told, idempotency.ErrUnavailable)
		require.ErrorIs(t, told, idempotency.ErrStoreFull)
		require.Equal(t, "1", retryAfter)
		require.Equal(t, "1", a.Header.Get("Retry-After"))

		a = p.post(t, "k", "{}", "Delegate", "yes")
		require.Equal(t, http.StatusServiceUnavailable, a.Status)
		require.Equal(t, []string{"1"}, a.Header["Retry-After"])
		require.Equal(t, []string{`<https://api.example/docs>; rel="describedby"`}, a.Header["Link"])
	})
}

// A status that is not the sentinel's usual one reaches WriteError too.
func TestErrorCarriesItsStatus(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil, func(c *idempotency.Config) {
		c.ErrorHandler = func(w http.ResponseWriter, r *http.Request, err error) {
			idempotency.WriteError(w, r, fmt.Errorf("wrapped: %w", err))
		}
	})
	r := request("k", "{}")
	r.Body.Read(make([]byte, 2))
	requireProblem(t, call(f.Handler(&charges{}), r), http.StatusInternalServerError, "request_body_unreadable")
}
