package idempotency

import (
	"net/http"
	"net/http/httptest"
	"sync"
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

// A goroutine that the handler left behind may be about to record the response, early or in
// a transaction, while it is sent: what it compares with is not the header map that goes out,
// which would race, and in which the handler's own fields look like an outer layer's.
func TestRecordedWhileItIsSent(t *testing.T) {
	t.Parallel()
	for name, busy := range map[string]func(*recorder){
		"an early record":     func(rec *recorder) { rec.overflown = true },
		"an open transaction": func(rec *recorder) { rec.hold() },
	} {
		for end, over := range map[string]func(*recorder){"returned": (*recorder).finish, "panicked": (*recorder).abort} {
			t.Run(name+", "+end, func(t *testing.T) {
				t.Parallel()
				w := httptest.NewRecorder()
				w.Header().Set("Content-Language", "en")
				rec := new(recorder)
				rec.init(w, &Attempt{cfg: &Config{ReplayHeaders: DefaultReplayHeaders}})
				rec.Header().Set("Location", "/charges/1")
				rec.WriteHeader(http.StatusCreated)
				busy(rec)
				over(rec)
				var wg sync.WaitGroup
				wg.Go(func() { rec.response() })
				rec.send()
				wg.Wait()
				fields := rec.response().fields
				require.Len(t, fields, 1)
				require.Equal(t, "Location", fields[0].Name)
			})
		}
	}
}

// A transaction that begins when the handler has returned would record a response whose
// fields have been given away.
func TestNothingIsHeldAfterTheHandler(t *testing.T) {
	t.Parallel()
	for _, over := range []func(*recorder){(*recorder).finish, (*recorder).abort} {
		rec := new(recorder)
		rec.init(httptest.NewRecorder(), new(Attempt))
		over(rec)
		_, ok := rec.hold()
		require.False(t, ok)
	}
}
