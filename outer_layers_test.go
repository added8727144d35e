package idempotency_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency"
)

// outerLayer sets what authentication, CORS, tracing and the like set on each response.
func outerLayer(next http.Handler) http.Handler {
	var n atomic.Int64
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("X-Request-Id", fmt.Sprint(n.Add(1)))
		h.Set("Access-Control-Allow-Origin", "https://shop.example")
		h["Vary"] = []string{"Origin"}
		h["Set-Cookie"] = []string{fmt.Sprintf("session=%d", n.Load())}
		h["Link"] = []string{fmt.Sprintf("</trace/%d>; rel=trace", n.Load()), "</help>; rel=help"}
		h.Set("Content-Language", "en")
		h.Set("Content-Type", "application/problem+json")
		h.Set("ETag", `"outer"`)
		next.ServeHTTP(w, r)
	})
}

// everyHeader records whatever New lets through.
func everyHeader(c *idempotency.Config) {
	c.ReplayHeaders = append(c.ReplayHeaders, idempotency.DefaultReplayHeaders...)
	c.ReplayHeaders = append(c.ReplayHeaders, "X-Request-Id", "access-control-allow-origin", "Vary", "X-Charge")
}

// What outer layers set is fresh on a replay, even under names that are recorded. What
// the handler did with it is done again.
func TestOuterHeadersStayFresh(t *testing.T) {
	onEachProtocol(t, func(t *testing.T, listen listenFunc) {
		p := listen(outerLayer(newFixture(t, nil, everyHeader).Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			h := w.Header()
			h.Add("Link", "</charges/1>; rel=self, </charges>; rel=up") // behind the outer ones
			h.Add("Link", "</charges/2>; rel=next")
			h.Add("Vary", "Accept")
			h.Set("Content-Type", "text/plain") // in place of the outer one
			h.Del("Content-Language")           // taken away
			h.Set("X-Charge", "1")
			h.Set("Set-Cookie", "basket=; Max-Age=0")
			w.WriteHeader(http.StatusCreated)
			io.WriteString(w, "charged")
		}))))
		for n := 1; n <= 3; n++ {
			a := p.post(t, "k", "{}")
			require.Equal(t, n > 1, a.replayed())
			require.Equal(t, []string{fmt.Sprint(n)}, a.Header["X-Request-Id"])
			require.Equal(t, []string{"https://shop.example"}, a.Header["Access-Control-Allow-Origin"])
			require.Equal(t, []string{"Origin", "Accept"}, a.Header["Vary"])
			require.Equal(t, []string{
				fmt.Sprintf("</trace/%d>; rel=trace", n), "</help>; rel=help",
				"</charges/1>; rel=self, </charges>; rel=up", "</charges/2>; rel=next",
			}, a.Header["Link"], "line by line, never split or joined at commas")
			require.Equal(t, []string{"text/plain"}, a.Header["Content-Type"])
			require.Equal(t, []string{`"outer"`}, a.Header["Etag"], "of the outer layer, not recorded")
			require.Equal(t, []string{"1"}, a.Header["X-Charge"])
			if n == 1 {
				require.NotContains(t, a.Header, "Content-Language")
				require.Equal(t, []string{"basket=; Max-Age=0"}, a.Header["Set-Cookie"])
			} else {
				require.Equal(t, []string{"en"}, a.Header["Content-Language"], "a deletion is not recorded")
				require.Equal(t, []string{fmt.Sprintf("session=%d", n)}, a.Header["Set-Cookie"])
			}
		}
	})
}

// Values put in front of the outer ones, or between them, are a change, not an addition.
func TestChangedOuterValuesAreSetAgain(t *testing.T) {
	onEachProtocol(t, func(t *testing.T, listen listenFunc) {
		p := listen(outerLayer(newFixture(t, nil).Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header()["Link"] = append([]string{"</first>"}, w.Header()["Link"]...)
		}))))
		want := []string{"</first>", "</trace/1>; rel=trace", "</help>; rel=help"}
		require.Equal(t, want, p.post(t, "k", "{}").Header["Link"])
		require.Equal(t, want, p.post(t, "k", "{}").Header["Link"])
	})
}

// The record is what the handler did to a header, as the store is told it.
func TestWhatIsRecordedOfAHeader(t *testing.T) {
	t.Parallel()
	store := &recordingStore{faultStore: newFaultStore("Reserve")}
	call(outerLayer(newFixture(t, store, everyHeader).Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Add("Vary", "Accept")
		w.Header().Set("X-Charge", "1")
		w.Header()["content-language"] = []string{"de"} // a name that is not canonical
		w.Header()["Content-Type"] = nil
		w.Header().Set("X-Unknown", "1")
		w.Header().Del("Link")
		io.WriteString(w, "<html>")
	}))), request("k", "{}"))
	require.Len(t, store.responses, 1)
	resp := store.responses[0]
	require.Empty(t, resp.Header["Content-Type"])
	require.Contains(t, resp.Header, "Content-Type")
	delete(resp.Header, "Content-Type")
	require.Equal(t, http.Header{
		"Vary": {"Accept"}, "X-Charge": {"1"}, "content-language": {"de"},
	}, resp.Header)
	require.Equal(t, []string{"Vary"}, resp.Appended)
	require.Equal(t, "<html>", string(resp.Body))
	require.Equal(t, http.StatusOK, resp.Status)
}

// recordingStore keeps the responses that it is told to record.
type recordingStore struct {
	*faultStore
	responses []idempotency.Response
}

func (s *recordingStore) Complete(ctx context.Context, c idempotency.Claim, resp idempotency.Response) error {
	s.responses = append(s.responses, resp)
	return s.faultStore.Complete(ctx, c, resp)
}

// A handler that sees the outer header may change all of it, and an outer layer sees
// what was sent.
func TestHandlerSeesTheOuterHeader(t *testing.T) {
	onEachProtocol(t, func(t *testing.T, listen listenFunc) {
		m := newFixture(t, nil).Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			assert.Equal(t, "1", w.Header().Get("X-Outer"))
			w.Header()["X-Outer"][0] = "2" // its own copy
			clear(w.Header())
			w.Header().Set("X-Inner", "1")
			w.WriteHeader(http.StatusCreated)
		}))
		sent := make(chan http.Header, 1)
		p := listen(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			outer := []string{"1"}
			w.Header()["X-Outer"] = outer
			m.ServeHTTP(w, r)
			assert.Equal(t, []string{"1"}, outer)
			sent <- w.Header().Clone()
		}))
		a := p.post(t, "k", "{}")
		require.NotContains(t, a.Header, "X-Outer")
		require.Equal(t, "1", a.Header.Get("X-Inner"))
		require.Equal(t, "1", (<-sent).Get("X-Inner"))
	})
}

// Neither a handler, nor an outer layer, nor a client's replay can change a record
// through what it was given.
func TestRecordSharesNoMemory(t *testing.T) {
	t.Parallel()
	body, link := []byte("charged"), []string{"</1>", "</2>"}
	m := newFixture(t, nil).Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header()["Link"] = append(w.Header()["Link"], link...)
		w.Write(body)
	}))
	spoil := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		shared := make([]string, 1, 8)
		shared[0] = "</outer>"
		w.Header()["Link"] = shared
		m.ServeHTTP(spoiler{w}, r)
		copy(body, "changed")
		copy(link, []string{"x", "x"})
		require.Equal(t, []string{"</outer>", "", ""}, shared[:3], "an outer layer's slice was written to")
		for _, values := range w.Header() {
			for i := range values {
				values[i] = "spoiled"
			}
		}
	})
	call(spoil, request("k", "{}"))
	for range 2 {
		w := httptest.NewRecorder()
		m.ServeHTTP(w, request("k", "{}"))
		require.Equal(t, []string{"</1>", "</2>"}, w.Header()["Link"])
		require.Equal(t, "charged", w.Body.String())
		call(spoil, request("k", "{}"))
	}
}

// spoiler writes over what it was given, as a compressing layer may.
type spoiler struct{ http.ResponseWriter }

func (s spoiler) Write(p []byte) (int, error) {
	n, err := s.ResponseWriter.Write(p)
	clear(p)
	return n, err
}

func TestReplayHeadersNone(t *testing.T) {
	onEachProtocol(t, func(t *testing.T, listen listenFunc) {
		p := listen(newFixture(t, nil, func(c *idempotency.Config) { c.ReplayHeaders = []string{} }).Handler(&charges{}))
		require.Equal(t, "/charges/1", p.post(t, "k", "{}").Header.Get("Location"))
		a := p.post(t, "k", "{}")
		require.True(t, a.replayed())
		require.NotContains(t, a.Header, "Location")
		require.Equal(t, `{"charge":1}`, a.Body)
	})
}
