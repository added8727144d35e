package idempotency

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// PostgresDB is what [PostgresStore] needs of a database: a *pgxpool.Pool has it.
type PostgresDB interface {
	Begin(ctx context.Context) (pgx.Tx, error)
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// PostgresConfig configures a [PostgresStore]. Its zero value is ready.
type PostgresConfig struct {
	// Table is the table's name; "" is idempotency_keys. A schema may stand before it,
	// and a dot between the two; otherwise the search_path decides. Each part is 1 to 63
	// lower-case letters, digits and underscores. Reserved words are allowed.
	Table string
	// Ungrouped gives each claim, look and outcome a statement of its own even when many
	// callers queue, who share statements otherwise.
	Ungrouped bool
}

// PostgresStore is a [Store] in a PostgreSQL table, for any number of processes. It
// must be made by [NewPostgresStore], or its methods fail, and they may be called
// concurrently.
//
// A fresh request costs two round trips; a replay no write and one round trip, or two if
// this process has not met its key among the last 65,000 or so. Every call is a few
// single statements, each a transaction of its own: a connection is held for a statement,
// no session state is used, and any query mode of pgx will do. Statements that the server
// rolled back for the sake of another (serialization failure, deadlock) are repeated a
// few times. Contexts are used as they are given; no time-out is added.
//
// An error other than [ErrClaimLost] wraps pgx's and says nothing of the key.
type PostgresStore struct {
	db    PostgresDB
	table tableName
	sql   statements

	recent *recentKeys
	// Nil if Ungrouped.
	insertions  *group[Claim, insertion]
	looks       *group[look, *postgresRow]
	completions *group[outcome, bool]

	sweepFrom atomic.Pointer[time.Time] // the expiry at which the next batch begins; nil: with the first
}

// NewPostgresStore returns a store that keeps its records in cfg.Table of db, which
// [PostgresStore.Migrate] creates. It does no I/O. It fails if db is nil, as a pool is
// whose own error was ignored, or if the table's name is not one.
func NewPostgresStore(db PostgresDB, cfg PostgresConfig) (*PostgresStore, error) {
	if v := reflect.ValueOf(db); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
		return nil, errors.New("idempotency: NewPostgresStore: no database")
	}
	table, err := parseTableName(cfg.Table)
	if err != nil {
		return nil, fmt.Errorf("idempotency: NewPostgresStore: %w", err)
	}
	s := &PostgresStore{db: db, table: table, sql: newStatements(table), recent: new(recentKeys)}
	if !cfg.Ungrouped {
		s.insertions = &group[Claim, insertion]{
			limits: writing, alone: s.insertAlone, together: s.insertTogether, keep: asItIs[Claim],
		}
		s.looks = &group[look, *postgresRow]{
			limits: reading, alone: s.findAlone, together: s.findTogether, keep: asItIs[look],
		}
		s.completions = &group[outcome, bool]{
			limits: writing, alone: s.completeAlone, together: s.completeTogether, keep: outcome.withOwnBody,
		}
	}
	return s, nil
}

// querier is a pool or a transaction.
type querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// maxLooks bounds how often Reserve looks at a row that changes under its eyes: each
// time somebody else took or freed the key in between. 10 such looks in a row were seen,
// of dozens of callers who released a key again and again.
const maxLooks = 100

var (
	errRestless   = errors.New("the record changed at every look")
	errUnstorable = errors.New("a key with NUL or invalid UTF-8 cannot be stored")
)

// Reserve implements [Store].
func (s *PostgresStore) Reserve(ctx context.Context, c Claim) (Record, error) {
	if s.unmade() {
		return Record{}, failed("Reserve", errUnmade)
	}
	// In pgx's simple protocol a NUL would end the statement's text, and the server's
	// complaint would quote the rest of it.
	if !storable(c.Key.Tenant) || !storable(c.Key.Endpoint) || !storable(c.Key.Value) {
		return Record{}, failed("Reserve", errUnstorable)
	}
	var rec Record
	id := c.Key.id()
	err := again(ctx, func() error {
		lookFirst := s.recent.contains(id)
		for range maxLooks {
			var decided bool
			var err error
			if rec, decided, err = s.tryReserve(ctx, c, id, lookFirst); err != nil || decided {
				return err
			}
			lookFirst = false
		}
		return errRestless
	})
	if err != nil {
		return Record{}, failed("Reserve", err)
	}
	return rec, nil
}

// tryReserve inserts first, because most requests are fresh, and looks only at what was
// in the way. Only for a key that has a record in all likelihood it looks first: nothing
// is taken but by a statement that makes sure of it. It is undecided if there was no
// record at the look, or it was no longer what it was when it came to taking it.
func (s *PostgresStore) tryReserve(ctx context.Context, c Claim, id [16]byte, lookFirst bool) (rec Record, decided bool, err error) {
	if !lookFirst {
		made, err := s.insert(ctx, c)
		if err != nil {
			return Record{}, false, err
		}
		s.recent.add(id) // its own record, or the one in the way
		if made.inserted {
			return c.acquired(1, made.createdAt), true, nil
		}
	}
	row, err := s.find(ctx, look{uuidOf(id), c.Fingerprint})
	if err != nil {
		return Record{}, false, err
	}
	if row == nil {
		s.recent.remove(id)
		return Record{}, false, nil
	}
	return s.meet(ctx, c, uuidOf(id), row)
}

// meet answers a claim whose key has a record, or takes the record over.
func (s *PostgresStore) meet(ctx context.Context, c Claim, id pgtype.UUID, row *postgresRow) (rec Record, decided bool, err error) {
	token := uuidOf(c.Token)
	switch {
	case row.dead():
		return s.take(ctx, c, s.sql.replace, id, token, c.Fingerprint[:], micros(c.Lease), micros(c.TTL))
	case row.completed(): // whoever asks
	case row.token == token: // the reply to an earlier call was lost
		rec, decided, err = s.take(ctx, c, s.sql.extend, id, token, micros(c.Lease))
		copy(rec.Fingerprint[:], row.fingerprint) // the first request's
		return rec, decided, err
	case c.Rerun && row.lapsed() && row.isFor(c.Fingerprint):
		return s.take(ctx, c, s.sql.retake, id, token, c.Fingerprint[:], micros(c.Lease))
	}
	rec, err = row.record(c.Fingerprint)
	return rec, true, err
}

// insert reserves a key that has no record. It waits for another insert of the same key
// that has not committed yet.
func (s *PostgresStore) insert(ctx context.Context, c Claim) (insertion, error) {
	if s.insertions != nil {
		return s.insertions.do(ctx, c)
	}
	return s.insertAlone(ctx, c)
}

func (s *PostgresStore) insertAlone(ctx context.Context, c Claim) (made insertion, err error) {
	err = s.db.QueryRow(ctx, s.sql.insert, uuidOf(c.Key.id()), c.Key.Tenant, c.Key.Endpoint, c.Key.Value,
		c.Fingerprint[:], uuidOf(c.Token), micros(c.Lease), micros(c.TTL)).Scan(&made.createdAt)
	made.inserted, err = matched(err)
	return made, err
}

// take runs a conditional UPDATE that makes the record c's. If it matches nothing,
// somebody else was faster.
func (s *PostgresStore) take(ctx context.Context, c Claim, sql string, args ...any) (Record, bool, error) {
	var attempt int
	var createdAt time.Time
	taken, err := matched(s.db.QueryRow(ctx, sql, args...).Scan(&attempt, &createdAt))
	return c.acquired(attempt, createdAt), taken, err
}

func (c *Claim) acquired(attempt int, createdAt time.Time) Record {
	return Record{
		State:       Acquired,
		Fingerprint: c.Fingerprint,
		Attempt:     attempt,
		LeaseLeft:   max(c.Lease, 0),
		CreatedAt:   createdAt,
	}
}

// Extend implements [Store].
func (s *PostgresStore) Extend(ctx context.Context, c Claim) error {
	return s.settle(ctx, "Extend", func() (bool, error) {
		_, extended, err := s.take(ctx, c, s.sql.extend, uuidOf(c.Key.id()), uuidOf(c.Token), micros(c.Lease))
		return extended, err
	})
}

// Complete implements [Store].
func (s *PostgresStore) Complete(ctx context.Context, c Claim, resp Response) error {
	o := outcomeOf(c, resp)
	return s.settle(ctx, "Complete", func() (bool, error) {
		done, err := s.record(ctx, o)
		if err != nil || done {
			return done, err
		}
		return s.completed(ctx, s.db, c) // an earlier call may have, and lost its reply
	})
}

// record is complete in a transaction of its own.
func (s *PostgresStore) record(ctx context.Context, o outcome) (bool, error) {
	if s.completions != nil {
		return s.completions.do(ctx, o)
	}
	return s.completeAlone(ctx, o)
}

func (s *PostgresStore) completeAlone(ctx context.Context, o outcome) (bool, error) {
	return s.complete(ctx, s.db, o)
}

// complete records o unless its claim does not own the key. In a transaction it holds the
// row, as the owner still, until that ends.
func (s *PostgresStore) complete(ctx context.Context, q querier, o outcome) (bool, error) {
	tag, err := q.Exec(ctx, s.sql.complete, append(o.args(), micros(o.claim.TTL))...)
	return tag.RowsAffected() == 1, err
}

// completed reports whether c's token has completed the key. It waits for a transaction
// that is about to, so that its answer stays true.
func (s *PostgresStore) completed(ctx context.Context, q querier, c Claim) (done bool, err error) {
	err = q.QueryRow(ctx, s.sql.completed, uuidOf(c.Key.id()), uuidOf(c.Token)).Scan(&done)
	found, err := matched(err)
	return found && done, err
}

// Release implements [Store].
func (s *PostgresStore) Release(ctx context.Context, c Claim) error {
	return s.settle(ctx, "Release", func() (bool, error) {
		return s.release(ctx, s.db, c)
	})
}

// release frees the key unless c does not own it in progress.
func (s *PostgresStore) release(ctx context.Context, q querier, c Claim) (bool, error) {
	s.recent.remove(c.Key.id())
	tag, err := q.Exec(ctx, s.sql.release, uuidOf(c.Key.id()), uuidOf(c.Token))
	return tag.RowsAffected() == 1, err
}

// settle runs an operation that reports whether it found its claim.
func (s *PostgresStore) settle(ctx context.Context, operation string, op func() (bool, error)) error {
	if s.unmade() {
		return failed(operation, errUnmade)
	}
	var owned bool
	err := again(ctx, func() (err error) {
		owned, err = op()
		return err
	})
	switch {
	case err != nil:
		return failed(operation, err)
	case !owned:
		return ErrClaimLost
	}
	return nil
}

// outcome is a response on its way into a record.
type outcome struct {
	claim   Claim
	status  int32
	header  []byte
	body    []byte
	ref     []byte
	omitted bool
}

func outcomeOf(c Claim, resp Response) outcome {
	return outcome{c, int32(resp.Status), resp.appendHeader(nil), resp.Body, []byte(resp.Ref), resp.Omitted}
}

// args are the first arguments of every statement that records a response.
func (o *outcome) args() []any {
	return []any{uuidOf(o.claim.Key.id()), uuidOf(o.claim.Token), o.status, o.header, o.body, o.ref, o.omitted}
}

// uuidOf is for arguments: pgx cannot encode a bare [16]byte in every query mode.
func uuidOf(id [16]byte) pgtype.UUID { return pgtype.UUID{Bytes: id, Valid: true} }

// micros is d in PostgreSQL's resolution, rounded up: a lease of 1 ns is not none.
func micros(d time.Duration) int64 {
	n := d.Microseconds()
	if d > time.Duration(n)*time.Microsecond {
		n++
	}
	return n
}

// matched tells a statement that matched no row from one that failed.
func matched(err error) (bool, error) {
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

func failed(operation string, err error) error {
	return fmt.Errorf("idempotency: PostgresStore.%s: %w", operation, judged(err))
}
