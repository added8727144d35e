package chaos

import (
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// A process that is stopped past its lease, and goes on when another has taken over,
// overwrites nothing, and its handler learns that it is stale.
func TestAStalledProcessOverwritesNothing(t *testing.T) {
	t.Parallel()
	db := startPostgres(t)
	binary := build(t)
	env := []string{"DATABASE_URL=" + db.url(), "LEASE=1s", "AFTER_CRASH=rerun"}
	slow := newProgram(t, binary, append(env, "CARD_NETWORK_LATENCY=5s")...)
	slow.ready(t)
	fast := newProgram(t, binary, append(env, "CARD_NETWORK_LATENCY=1ms")...)
	fast.ready(t)
	conn, err := pgx.Connect(t.Context(), db.url())
	require.NoError(t, err)
	defer conn.Close(t.Context())

	stale := make(chan answer, 1)
	go func() {
		a, _ := slow.charge(t.Context(), http.DefaultClient, "k", "order")
		stale <- a
	}()
	require.Eventually(t, func() bool {
		var claims int
		return conn.QueryRow(t.Context(), "SELECT count(*) FROM idempotency_keys").Scan(&claims) == nil && claims == 1
	}, time.Minute, time.Millisecond)
	slow.signal(syscall.SIGSTOP)

	var first answer
	require.Eventually(t, func() bool {
		first, err = fast.charge(t.Context(), http.DefaultClient, "k", "order")
		return err == nil && first.status != http.StatusConflict
	}, time.Minute, 50*time.Millisecond)
	require.Equal(t, http.StatusCreated, first.status)
	row := func() (token, xmin string) {
		require.NoError(t, conn.QueryRow(t.Context(), "SELECT token::text, xmin::text FROM idempotency_keys").Scan(&token, &xmin))
		return token, xmin
	}
	token, xmin := row()

	slow.signal(syscall.SIGCONT)
	require.NotEqual(t, http.StatusCreated, (<-stale).status, "the stale attempt charged")
	require.Eventually(t, func() bool {
		log := slow.log.String()
		return strings.Contains(log, "claim lost while the handler runs") && strings.Contains(log, "outcome=unrecorded")
	}, time.Minute, 10*time.Millisecond, "the handler does not learn that it is stale: %s", &slow.log)
	afterToken, afterXmin := row()
	require.Equal(t, token, afterToken)
	require.Equal(t, xmin, afterXmin, "the record was written again")

	again, err := fast.charge(t.Context(), http.DefaultClient, "k", "order")
	require.NoError(t, err)
	require.Equal(t, first, again)
	var charges int
	require.NoError(t, conn.QueryRow(t.Context(), "SELECT count(*) FROM charges").Scan(&charges))
	require.Equal(t, 1, charges)
}
