package idempotency_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency"
)

// A panic of Keep is the request's alone. The claim is not renewed for ever behind it:
// that the outcome is unknown shows when the lease is over.
func TestKeepPanics(t *testing.T) {
	for name, body := range map[string]string{"short": "x", "recorded early": strings.Repeat("x", 100)} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newFixture(t, nil, func(c *idempotency.Config) {
					c.MaxResponseBytes = 10
					c.Keep = func(int) bool { panic("of Keep") }
				})
				var ctx context.Context
				h := f.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					ctx = r.Context()
					io.WriteString(w, body)
				}))
				require.PanicsWithValue(t, "of Keep", func() { call(h, request("k", "{}")) })
				require.Error(t, ctx.Err())
				time.Sleep(30 * time.Second)
				requireProblem(t, call(h, request("k", "{}")), http.StatusConflict, "idempotency_outcome_unknown")
			})
		})
	}
}
