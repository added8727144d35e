package idempotency

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
)

// What the next response is given to work with must not be in anybody's hands: not in
// those of a goroutine that the handler left behind in a store or a transaction, nor in
// those of the recorder itself.
func TestRecorderGivesItsFieldsBackOnce(t *testing.T) {
	start := func() *recorder {
		rec := new(recorder)
		rec.init(httptest.NewRecorder(), &Attempt{cfg: &Config{ReplayHeaders: DefaultReplayHeaders}})
		rec.Header().Set("Content-Type", "text/plain")
		rec.WriteHeader(http.StatusCreated)
		rec.finish()
		return rec
	}

	for name, busy := range map[string]func(*recorder){
		"an early record":     func(rec *recorder) { rec.overflown = true },
		"an open transaction": func(rec *recorder) { rec.holding = true },
	} {
		rec := start()
		resp := rec.response()
		busy(rec)
		rec.recycle()
		require.Equal(t, "Content-Type", resp.fields[0].Name, name)
		require.NotNil(t, rec.space, name)
	}

	rec := start()
	require.Len(t, rec.response().fields, 1)
	rec.recycle()
	rec.recycle()
	require.Nil(t, rec.frozen)
	require.Empty(t, rec.response().fields, "a response made after the run has nobody's fields")
	one, other := start(), start()
	require.NotSame(t, one.space, other.space)
}
