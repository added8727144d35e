package idempotency

import (
	"bytes"
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

var (
	// While one statement is committed, another is filled and sent.
	writing = limits{few: 16, crowd: 2, calls: 512}
	// A look is done so soon that callers stand in each other's way earlier.
	reading = limits{few: 8, crowd: 2, calls: 32}
)

// ---- reserve

// insertion is what became of an INSERT: a time if it was made.
type insertion struct {
	createdAt time.Time
	inserted  bool
}

// insertTogether inserts the claims whose keys have no record. The rows go in the order
// of their keys: two statements that insert the same ones would otherwise wait for each
// other.
func (s *PostgresStore) insertTogether(ctx context.Context, claims []Claim) ([]insertion, error) {
	var (
		n                        = len(claims)
		ids, tokens              = make([]pgtype.UUID, n), make([]pgtype.UUID, n)
		tenants, endpoints, keys = make([]string, n), make([]string, n), make([]string, n)
		fingerprints             = make([][]byte, n)
		leases, ttls             = make([]int64, n), make([]int64, n)
	)
	for i, p := range orderedBy(claims, func(c Claim) [16]byte { return c.Key.id() }) {
		c := &claims[p.index]
		ids[i], tokens[i], fingerprints[i] = uuidOf(p.id), uuidOf(c.Token), c.Fingerprint[:]
		tenants[i], endpoints[i], keys[i] = c.Key.Tenant, c.Key.Endpoint, c.Key.Value
		leases[i], ttls[i] = micros(c.Lease), micros(c.TTL)
	}
	rows, err := s.db.Query(ctx, s.sql.insertTogether, ids, tenants, endpoints, keys, fingerprints, tokens, leases, ttls)
	if err != nil {
		return nil, err
	}
	made := make(map[[16]byte]time.Time, n)
	var token pgtype.UUID
	var createdAt time.Time
	if _, err = pgx.ForEachRow(rows, []any{&token, &createdAt}, func() error {
		made[token.Bytes] = createdAt
		return nil
	}); err != nil {
		return nil, err
	}
	out := make([]insertion, n)
	for i, c := range claims {
		out[i].createdAt, out[i].inserted = made[c.Token]
	}
	return out, nil
}

// ---- look

// look asks for the record of a key, on behalf of a request.
type look struct {
	id          pgtype.UUID
	fingerprint Fingerprint
}

// findTogether returns nil for a key that has no record.
func (s *PostgresStore) findTogether(ctx context.Context, looks []look) ([]*postgresRow, error) {
	ids, fingerprints := make([]pgtype.UUID, len(looks)), make([][]byte, len(looks))
	for i := range looks {
		ids[i], fingerprints[i] = looks[i].id, looks[i].fingerprint[:]
	}
	rows, err := s.db.Query(ctx, s.sql.findTogether, ids, fingerprints)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out := make([]*postgresRow, len(looks))
	for rows.Next() {
		var r postgresRow
		var place int // from 1
		if err := rows.Scan(append(r.columns(), &place)...); err != nil {
			return nil, err
		}
		out[place-1] = &r
	}
	return out, rows.Err()
}

// ---- complete

func (o outcome) withOwnBody() outcome {
	o.body = bytes.Clone(o.body)
	return o
}

// planned has the server plan a statement each time. A plan that it made while the table
// was small, and keeps, would read a table that has grown since from end to end, for every
// outcome.
const planned = pgx.QueryExecModeCacheDescribe

// completeTogether records the outcomes whose claims own their keys, and reports which.
func (s *PostgresStore) completeTogether(ctx context.Context, outcomes []outcome) ([]bool, error) {
	var (
		n             = len(outcomes)
		ids, tokens   = make([]pgtype.UUID, n), make([]pgtype.UUID, n)
		statuses      = make([]int32, n)
		headers, refs = make([][]byte, n), make([][]byte, n)
		bodies        = make([][]byte, n)
		omitted       = make([]bool, n)
		ttls          = make([]int64, n)
	)
	for i, p := range orderedBy(outcomes, func(o outcome) [16]byte { return o.claim.Key.id() }) {
		o := &outcomes[p.index]
		ids[i], tokens[i], ttls[i] = uuidOf(p.id), uuidOf(o.claim.Token), micros(o.claim.TTL)
		statuses[i], headers[i], bodies[i], refs[i], omitted[i] = o.status, o.header, o.body, o.ref, o.omitted
	}
	rows, err := s.db.Query(ctx, s.sql.completeTogether, planned, ids, tokens, statuses, headers, bodies, refs, omitted, ttls)
	if err != nil {
		return nil, err
	}
	done := make(map[[16]byte]bool, n)
	var token pgtype.UUID
	if _, err = pgx.ForEachRow(rows, []any{&token}, func() error {
		done[token.Bytes] = true
		return nil
	}); err != nil {
		return nil, err
	}
	out := make([]bool, n)
	for i, o := range outcomes {
		out[i] = done[o.claim.Token]
	}
	return out, nil
}

// place is where a call's row is, in the order of the primary keys.
type place struct {
	id    [16]byte
	index int
}

func orderedBy[T any](calls []T, id func(T) [16]byte) []place {
	order := make([]place, len(calls))
	for i, call := range calls {
		order[i] = place{id(call), i}
	}
	slices.SortFunc(order, func(a, b place) int {
		return cmp.Or(bytes.Compare(a.id[:], b.id[:]), cmp.Compare(a.index, b.index))
	})
	return order
}
