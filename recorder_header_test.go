package idempotency

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
)

// recorderOf returns a recorder behind an outer layer that set Vary, after a handler that wrote
// names header fields of its own and added to Vary.
func recorderOf(names int) *recorder {
	cfg := new(Config)
	w := httptest.NewRecorder()
	w.Header().Set("Vary", "Origin")
	rec := new(recorder)
	rec.init(w, &Attempt{cfg: cfg})
	rec.header.Add("Vary", "Accept")
	cfg.ReplayHeaders = []string{"Vary"}
	for i := range names {
		name := "X-" + string(rune('A'+i))
		cfg.ReplayHeaders = append(cfg.ReplayHeaders, name)
		rec.header[name] = []string{"1", "2"}
	}
	cfg.MaxResponseBytes = defaultMaxBytes
	rec.WriteHeader(http.StatusCreated)
	return rec
}

// A store of this package and any other keep the same of a response.
func TestResponseForAnyStore(t *testing.T) {
	t.Parallel()
	for _, names := range []int{0, 1, 20} {
		ours := recorderOf(names).response().forStore(&MemoryStore{})
		theirs := recorderOf(names).response().forStore(struct{ Store }{})
		require.Nil(t, ours.Header)
		require.Nil(t, theirs.fields)
		require.Len(t, theirs.Header, 1+names)
		require.Equal(t, []string{"Accept"}, theirs.Header["Vary"])
		require.Equal(t, []string{"Vary"}, theirs.Appended)
		require.Equal(t, ours.appendHeader(nil), theirs.appendHeader(nil))
	}
}

// While a store is still at work on a response, the handler's end makes another one.
func TestResponsesShareNoFields(t *testing.T) {
	t.Parallel()
	rec := recorderOf(2)
	first := rec.response()
	before := first.appendHeader(nil)
	for range 2 {
		clear(rec.response().fields)
	}
	require.True(t, bytes.Equal(before, first.appendHeader(nil)))
}
