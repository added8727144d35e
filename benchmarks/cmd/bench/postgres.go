package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed-2d1e5f61/idempotency"
	"github.com/seed-2d1e5f61/idempotency/benchmarks/internal/load"
	"github.com/seed-2d1e5f61/idempotency/benchmarks/internal/measure"
	"github.com/seed-2d1e5f61/idempotency/benchmarks/internal/tempdb"
)

// connections is the size of every pool, and how many pgbench has at most.
const connections = 16

var callerCounts = []int{1, 4, 16, 64, 256}

// postgres is a database of its own with a table for each case.
type postgres struct {
	url       string
	drop      func() error
	pool      *pgxpool.Pool
	sql       *statements
	grouped   http.Handler
	alone     http.Handler
	large     http.Handler // over many live records
	replayed  []string     // keys that are recorded in every store
	ids       []pgtype.UUID
	pgbench   string // "" if there is none
	dir       string // of pgbench's script
	left      []string
	many      int
	elsewhere uint64 // the first of elsewhereKeys that are recorded
}

// statements hears what the store sends, so that what it is compared to sends the same.
type statements struct {
	mu   sync.Mutex
	sent []string
}

func (s *statements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.sent) < 100 && !slices.Contains(s.sent, data.SQL) {
		s.sent = append(s.sent, data.SQL)
	}
	return ctx
}

func (*statements) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// find returns the statement on table that begins with verb.
func (s *statements) find(verb, table string) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sql := range s.sent {
		if strings.HasPrefix(sql, verb) && strings.Contains(sql, table) {
			return sql, nil
		}
	}
	return "", fmt.Errorf("the store has sent no %s", verb)
}

func openPostgres(ctx context.Context, server string, many int) (_ *postgres, err error) {
	p := &postgres{sql: new(statements), replayed: make([]string, few), many: many}
	for i := range p.replayed {
		p.replayed[i] = load.NewKey()
	}
	if p.url, p.drop, err = tempdb.Create(ctx, server); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	if p.dir, err = os.MkdirTemp("", "idempotency-bench"); err != nil {
		return nil, err
	}
	if p.pool, err = newPool(ctx, p.url, p.sql); err != nil {
		return nil, err
	}
	// What is compared works on one table: the larger it grows, the dearer is a new row.
	for _, s := range []struct {
		handler *http.Handler
		cfg     idempotency.PostgresConfig
	}{
		{&p.grouped, idempotency.PostgresConfig{Table: "common"}},
		{&p.alone, idempotency.PostgresConfig{Table: "common", Ungrouped: true}},
		{&p.large, idempotency.PostgresConfig{Table: "large"}},
	} {
		if *s.handler, err = p.protect(ctx, s.cfg); err != nil {
			return nil, err
		}
	}
	if err = p.fill(ctx); err != nil {
		return nil, err
	}
	rows, err := p.pool.Query(ctx, "SELECT id FROM common")
	if err != nil {
		return nil, err
	}
	if p.ids, err = pgx.CollectRows(rows, pgx.RowTo[pgtype.UUID]); err != nil {
		return nil, err
	}
	if p.pgbench = findPgbench(); p.pgbench == "" {
		p.left = append(p.left, "pgbench: not installed")
	} else {
		err = p.writeScript()
	}
	return p, err
}

func newPool(ctx context.Context, url string, tracer pgx.QueryTracer) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns, cfg.MinConns, cfg.ConnConfig.Tracer = connections, connections, tracer
	return pgxpool.NewWithConfig(ctx, cfg)
}

// protect puts a store on a table and has it serve the keys that are replayed later.
func (p *postgres) protect(ctx context.Context, cfg idempotency.PostgresConfig) (http.Handler, error) {
	store, err := load.Store(ctx, p.pool, cfg)
	if err != nil {
		return nil, err
	}
	handler, err := load.Middleware(store, load.Handler)
	if err != nil {
		return nil, err
	}
	client := load.NewClient(handler)
	for _, key := range p.replayed {
		client.Post(key)
		if err := client.Expect(key, true); err != nil {
			return nil, err
		}
	}
	return handler, nil
}

// fill gives one table many live records, like one that is in it.
func (p *postgres) fill(ctx context.Context) error {
	_, err := p.pool.Exec(ctx, `INSERT INTO large SELECT (r).* FROM (
			SELECT jsonb_populate_record(t, jsonb_build_object('id', gen_random_uuid(), 'key', n)) AS r
			FROM (SELECT large AS t FROM large LIMIT 1) AS one, generate_series(1, $1::bigint) AS n) AS filled`, p.many)
	if err == nil {
		_, err = p.pool.Exec(ctx, "VACUUM ANALYZE large")
	}
	return err
}

func (p *postgres) close() error {
	if p.pool != nil {
		p.pool.Close()
	}
	os.RemoveAll(p.dir)
	return p.drop()
}

func (p *postgres) cases() []measure.Case {
	var cases []measure.Case
	add := func(op, by string, callers int, run func(context.Context, time.Duration, int) (measure.Sample, error)) {
		cases = append(cases, measure.Case{
			Name: postgresName(op, by, callers),
			Run: func(ctx context.Context, d time.Duration) (measure.Sample, error) {
				return run(ctx, d, callers)
			},
		})
	}
	// What only reads comes first: behind many writes the server has work left over, which
	// would fall on the next case alone.
	for _, callers := range callerCounts {
		if callers == connections {
			add("replay-live", "grouped", callers, p.replay(p.large))
		}
		add("replay", "grouped", callers, p.replay(p.grouped))
		add("replay", "select", callers, p.selectOne)
		add("replay", "alone", callers, p.replay(p.alone))
		if callers == connections {
			add("replay-elsewhere", "grouped", callers, p.replayElsewhere)
		}
	}
	for _, callers := range callerCounts {
		add("fresh", "grouped", callers, fresh(p.grouped))
		if callers == connections {
			add("fresh-live", "grouped", callers, fresh(p.large))
		}
		add("fresh", "alone", callers, fresh(p.alone))
		if p.pgbench != "" {
			add("fresh", "pgbench", callers, p.runPgbench)
		}
	}
	add("hot", "grouped", 200, p.hotKey)
	return cases
}

func postgresName(op, by string, callers int) string {
	return fmt.Sprintf("Postgres/op=%s/by=%s/callers=%d", op, by, callers)
}

// errNoMore ends a caller's work before its time.
var errNoMore = errors.New("no more work")

// together has callers at work until d is over.
func together(ctx context.Context, d time.Duration, callers int, work func() error) (s measure.Sample, err error) {
	var ops atomic.Int64
	errs := make(chan error, callers)
	addErr := s.Add(func() (int, error) {
		var wg sync.WaitGroup
		for end := time.Now().Add(d); callers > 0; callers-- {
			wg.Go(func() {
				for time.Now().Before(end) && ctx.Err() == nil {
					err := work()
					if errors.Is(err, errNoMore) {
						return
					}
					if err != nil {
						errs <- err
						return
					}
					ops.Add(1)
				}
			})
		}
		wg.Wait()
		return int(ops.Load()), nil
	})
	close(errs)
	for e := range errs {
		return s, e
	}
	return s, errors.Join(addErr, ctx.Err())
}

// clients hands out a client to each caller at a time.
func clients(h http.Handler) *sync.Pool {
	return &sync.Pool{New: func() any { return load.NewClient(h) }}
}

func fresh(h http.Handler) func(context.Context, time.Duration, int) (measure.Sample, error) {
	pool := clients(h)
	return func(ctx context.Context, d time.Duration, callers int) (measure.Sample, error) {
		return together(ctx, d, callers, func() error {
			client := pool.Get().(*load.Client)
			defer pool.Put(client)
			return client.Expect(load.NewKey(), false)
		})
	}
}

// hotKey sends duplicates of one fresh key at once: one runs, the others are answered
// 409 or get the replay.
func (p *postgres) hotKey(ctx context.Context, d time.Duration, callers int) (s measure.Sample, err error) {
	pool := clients(p.grouped)
	for s.Elapsed < d && ctx.Err() == nil {
		key := load.NewKey()
		var runs atomic.Int64
		err := s.Add(func() (int, error) {
			var wg sync.WaitGroup
			for range callers {
				wg.Go(func() {
					client := pool.Get().(*load.Client)
					defer pool.Put(client)
					if status, replayed := client.Post(key); status == load.Status && !replayed {
						runs.Add(1)
					}
				})
			}
			wg.Wait()
			return callers, nil
		})
		if err == nil && runs.Load() != 1 {
			err = fmt.Errorf("one key ran %d times", runs.Load())
		}
		if err != nil {
			return s, err
		}
	}
	return s, ctx.Err()
}
