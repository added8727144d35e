package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency/internal/testdb"
)

func environment(vars map[string]string) func(string) string {
	return func(name string) string { return vars[name] }
}

func TestBooksEachMessageOnce(t *testing.T) {
	t.Parallel()
	for name, vars := range map[string]func(*testing.T) map[string]string{
		"memory":     func(*testing.T) map[string]string { return nil },
		"PostgreSQL": func(t *testing.T) map[string]string { return map[string]string{"DATABASE_URL": testdb.Database(t)} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out strings.Builder
			require.NoError(t, run(t.Context(), environment(vars(t)), &out))
			require.Equal(t, "m1: booked 100\nm2: booked 200\nm2: a duplicate\nm3: booked 300\n"+
				"m1: a duplicate\nm4: booked 400\nm5: booked 500\n7 deliveries, 5 entries, balance 1500\n", out.String())
		})
	}
}

func build(t *testing.T) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "consumer")
	out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput()
	require.NoError(t, err, string(out))
	return binary
}

func TestArguments(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(build(t), "-crash", "3")
	out, err := cmd.CombinedOutput()
	require.ErrorAs(t, err, new(*exec.ExitError))
	require.Equal(t, 2, cmd.ProcessState.ExitCode())
	require.Equal(t, "consumer: unknown argument \"-crash\"; usage: [DATABASE_URL=...] [CRASH=n] consumer\n", string(out))
}

// The process dies between the effect and its commit; the next one finds the claim in
// flight, waits for the lease, and books the message once.
func TestACrashLosesNothingAndDoublesNothing(t *testing.T) {
	t.Parallel()
	database := testdb.Database(t)
	binary := build(t)
	consume := func(env ...string) (string, int) {
		cmd := exec.Command(binary)
		cmd.Env = append(append(os.Environ(), "DATABASE_URL="+database), env...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			require.ErrorAs(t, err, new(*exec.ExitError))
		}
		return string(out), cmd.ProcessState.ExitCode()
	}
	printed, code := consume("CRASH=3")
	require.Equal(t, 137, code)
	require.True(t, strings.HasSuffix(printed, "m2: a duplicate\nm3: dying while booking it\n"), printed)

	printed, code = consume()
	require.Zero(t, code, printed)
	require.Contains(t, printed, "m1: a duplicate")
	require.Contains(t, printed, "m3: booked 300")
	require.Contains(t, printed, "7 deliveries, 5 entries, balance 1500")
}

func TestBadConfiguration(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		vars map[string]string
		want string
	}{
		"CRASH is no number":        {map[string]string{"CRASH": "x"}, "want the number of a message"},
		"CRASH before the messages": {map[string]string{"CRASH": "0"}, `CRASH="0": want the number of a message`},
		"CRASH behind the messages": {map[string]string{"CRASH": "6"}, `CRASH="6": want the number of a message`},
		"CRASH in memory":           {map[string]string{"CRASH": "1"}, "CRASH needs DATABASE_URL"},
		"DATABASE_URL is no URL":    {map[string]string{"DATABASE_URL": "postgres://%"}, "DATABASE_URL"},
		"DATABASE_URL is not there": {map[string]string{"DATABASE_URL": "postgres://127.0.0.1:1/x"}, "DATABASE_URL"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := run(t.Context(), environment(c.vars), os.Stdout)
			require.ErrorContains(t, err, c.want)
		})
	}
}
