package idempotency

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency/internal/testdb"
)

// few is how many callers of a statementsOf go alone.
const few = 16

// statementsOf is a group whose statements take a second, and that counts them.
type statementsOf struct {
	group[int, int]
	alone, together atomic.Int32
	fail            error

	mu      sync.Mutex
	largest int
}

func newStatementsOf() *statementsOf {
	s := &statementsOf{}
	s.group.limits = limits{few: few, crowd: 2, calls: 512}
	s.group.keep = asItIs[int]
	s.group.alone = func(ctx context.Context, n int) (int, error) {
		s.alone.Add(1)
		return 2 * n, pause(ctx, time.Second)
	}
	s.group.together = func(ctx context.Context, ns []int) ([]int, error) {
		s.together.Add(1)
		s.mu.Lock()
		s.largest = max(s.largest, len(ns))
		s.mu.Unlock()
		if s.fail != nil {
			return nil, s.fail
		}
		out := make([]int, len(ns))
		for i, n := range ns {
			out[i] = 2 * n
		}
		return out, pause(ctx, time.Second)
	}
	return s
}

// call has n callers at once.
func (s *statementsOf) call(t *testing.T, n int) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			got, err := s.do(t.Context(), i)
			if err != nil || got != 2*i {
				t.Errorf("call %d = %d, %v", i, got, err)
			}
		})
	}
	wg.Wait()
}

func TestGroupLetsAFewCallersGoAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStatementsOf()
		began := time.Now()
		s.call(t, few)
		require.EqualValues(t, few, s.alone.Load())
		require.Zero(t, s.together.Load())
		require.Equal(t, time.Second, time.Since(began), "they went one after the other")
	})
}

func TestGroupLetsManyCallersShare(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStatementsOf()
		began := time.Now()
		s.call(t, 300)
		require.EqualValues(t, few, s.alone.Load())
		require.EqualValues(t, 1, s.together.Load())
		require.Equal(t, 300-few, s.largest)
		require.Equal(t, 2*time.Second, time.Since(began))
		require.Equal(t, []any{0, 0, 0}, []any{s.inside, s.busy, len(s.queue)}, "it does not come to rest")
	})
}

func TestGroupBoundsItsStatements(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStatementsOf()
		s.calls = 100
		began := time.Now()
		s.call(t, few+300)
		require.EqualValues(t, 3, s.together.Load())
		require.Equal(t, 100, s.largest)
		require.Equal(t, 3*time.Second, time.Since(began), "not two statements of a crowd at once, and then the third")
	})
}

// What calls were given may be long bodies of responses: once they are answered, a group
// that nobody queues in holds none of them.
func TestGroupAtRestHoldsNoCalls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var queued []weak.Pointer[[]byte]
		g := &group[*[]byte, int]{
			alone: func(ctx context.Context, _ *[]byte) (int, error) { return 0, pause(ctx, time.Second) },
			together: func(_ context.Context, bodies []*[]byte) ([]int, error) {
				for _, body := range bodies {
					queued = append(queued, weak.Make(body))
				}
				return make([]int, len(bodies)), nil
			},
			keep:   asItIs[*[]byte],
			limits: limits{few: few, crowd: 2, calls: 512},
		}
		var callers sync.WaitGroup
		for range 300 {
			callers.Go(func() {
				if _, err := g.do(t.Context(), &[]byte{100: 1}); err != nil {
					t.Error(err)
				}
			})
		}
		callers.Wait()
		synctest.Wait()
		require.NotEmpty(t, queued)
		runtime.GC()
		for _, body := range queued {
			require.Nil(t, body.Value())
		}
		runtime.KeepAlive(g)
	})
}

func TestGroupOfACallerThatLeaves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStatementsOf()
		var wg sync.WaitGroup
		wg.Go(func() { s.call(t, few+10) })
		synctest.Wait()

		// One is gone before its statement is sent, another while it is under way.
		for _, patience := range []time.Duration{time.Second / 2, 3 * time.Second / 2} {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				began := time.Now()
				_, err := s.do(ctx, 1000)
				if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != patience {
					t.Errorf("after %v: %v", time.Since(began), err)
				}
			})
		}
		wg.Wait() // the others have their answers: call checks them
		require.Equal(t, 11, s.largest, "a caller that had left was sent, or harmed others")
	})
}

// The statement is nobody's own: whoever leaves takes it from none of the others.
func TestGroupWhoseFirstCallerLeaves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStatementsOf()
		var wg sync.WaitGroup
		wg.Go(func() { s.call(t, few) })
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second/2)
		defer cancel()
		wg.Go(func() {
			if _, err := s.do(ctx, 1000); !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
		})
		synctest.Wait()
		wg.Go(func() { s.call(t, 10) })
		wg.Wait()
		require.EqualValues(t, 1, s.together.Load())
		require.EqualValues(t, few, s.alone.Load(), "the others were left without their statement")
	})
}

// A caller that has left may use its body for something else.
func TestSharedStatementsKeepTheirOwnBodies(t *testing.T) {
	t.Parallel()
	s, err := NewPostgresStore(new(pgxpool.Pool), PostgresConfig{})
	require.NoError(t, err)
	body := []byte("charged")
	kept := s.completions.keep(outcomeOf(claimOf("k"), Response{Body: body}))
	clear(body)
	require.Equal(t, "charged", string(kept.body))
}

func TestGroupFallsBackToSingleStatements(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStatementsOf()
		s.fail = errors.New("one row is bad")
		s.call(t, 50)
		require.EqualValues(t, 1, s.together.Load())
		require.EqualValues(t, 50, s.alone.Load())
	})
}

func claimOf(value string) Claim {
	return Claim{Key: Key{"t", "e", value}, Token: uuid.New(), Lease: time.Minute, TTL: time.Hour}
}

func lookOf(c Claim) look { return look{uuidOf(c.Key.id()), c.Fingerprint} }

func TestSharedStatementsInEveryQueryMode(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			pool := testdb.Pool(t, func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode })
			s, err := NewPostgresStore(pool, PostgresConfig{Table: testdb.Table(t)})
			require.NoError(t, err)
			require.NoError(t, s.Migrate(t.Context()))

			// One key twice, one taken before, one of its own.
			taken := claimOf("taken")
			_, err = s.Reserve(t.Context(), taken)
			require.NoError(t, err)
			a, twin, late, b := claimOf(`a{",\`), claimOf(`a{",\`), claimOf("taken"), claimOf("b")
			made, err := s.insertTogether(t.Context(), []Claim{a, twin, late, b})
			require.NoError(t, err)
			require.NotEqual(t, made[0].inserted, made[1].inserted, "two owners")
			require.False(t, made[2].inserted)
			require.True(t, made[3].inserted)
			if made[1].inserted {
				a, twin = twin, a
			}

			resp := Response{Status: 201, Body: []byte("\x00\xff{},\\\""), Ref: "r",
				Header: map[string][]string{"Link": {"a", "b"}}, Appended: []string{"Link"}}
			done, err := s.completeTogether(t.Context(), []outcome{
				outcomeOf(a, resp), outcomeOf(twin, Response{Status: 500}), outcomeOf(late, Response{Status: 500}),
				outcomeOf(b, Response{Status: 204, Omitted: true}),
			})
			require.NoError(t, err)
			require.Equal(t, []bool{true, false, false, true}, done, "the fence")

			rows, err := s.findTogether(t.Context(), []look{
				lookOf(b), lookOf(claimOf("none")), lookOf(a), lookOf(late), lookOf(a), {lookOf(a).id, Fingerprint{1}},
			})
			require.NoError(t, err)
			require.EqualValues(t, 204, rows[0].status.Int32)
			require.Nil(t, rows[1], "a record that is not there")
			for _, row := range []*postgresRow{rows[2], rows[4]} {
				rec, err := row.record(a.Fingerprint)
				require.NoError(t, err)
				require.Equal(t, resp, rec.Response)
			}
			require.False(t, rows[3].completed())
			require.True(t, rows[5].completed())
			require.Nil(t, rows[5].body, "sent to another request")

			rec, err := s.Reserve(t.Context(), claimOf(a.Key.Value))
			require.NoError(t, err)
			require.Equal(t, resp, rec.Response)
			rec, err = s.Reserve(t.Context(), claimOf("b"))
			require.NoError(t, err)
			require.Equal(t, 204, rec.Response.Status)
			require.True(t, rec.Response.Omitted)
			rec, err = s.Reserve(t.Context(), claimOf("taken"))
			require.NoError(t, err)
			require.Equal(t, InFlight, rec.State)
		})
	}
}

// watchShared counts the statements that calls share, none of which may fail.
func watchShared[In, Out any](t *testing.T, g *group[In, Out], shared *atomic.Int32) {
	together := g.together
	g.together = func(ctx context.Context, in []In) ([]Out, error) {
		shared.Add(1)
		out, err := together(ctx, in)
		if err != nil {
			t.Error(err)
		}
		return out, err
	}
}

// Hundreds at once, over keys that meet: every key has one owner, and each owner's
// outcome is recorded.
func TestManyCallersShareStatements(t *testing.T) {
	t.Parallel()
	var insertions, looks, completions atomic.Int32
	pool := testdb.Pool(t, func(c *pgxpool.Config) { c.MaxConns = 20 })
	s, err := NewPostgresStore(pool, PostgresConfig{Table: testdb.Table(t)})
	require.NoError(t, err)
	require.NoError(t, s.Migrate(t.Context()))
	watchShared(t, s.insertions, &insertions)
	watchShared(t, s.looks, &looks)
	watchShared(t, s.completions, &completions)

	const callers, rounds, keys = 200, 5, 50
	var owners [rounds * keys]atomic.Int32
	var wg sync.WaitGroup
	for caller := range callers {
		wg.Go(func() {
			for round := range rounds {
				n := round*keys + caller%keys
				c := claimOf(fmt.Sprint(n))
				rec, err := s.Reserve(t.Context(), c)
				if err != nil {
					t.Error(err)
				}
				if rec.State != Acquired {
					continue
				}
				owners[n].Add(1)
				if err := s.Complete(t.Context(), c, Response{Status: 200}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	for n := range owners {
		require.EqualValues(t, 1, owners[n].Load(), "key %d", n)
	}
	for name, shared := range map[string]*atomic.Int32{"insertions": &insertions, "looks": &looks, "completions": &completions} {
		require.NotZero(t, shared.Load(), "no %s were shared, so nothing was tested", name)
	}
	var completed int
	require.NoError(t, pool.QueryRow(t.Context(),
		"SELECT count(*) FROM "+s.table.quoted()+" WHERE completed_at IS NOT NULL").Scan(&completed))
	require.Equal(t, rounds*keys, completed)
}
