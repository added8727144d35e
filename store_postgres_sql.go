package idempotency

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/seed-2d1e5f61/idempotency/internal/headercode"
)

// statements are the SQL of one table.
type statements struct {
	insertTogether, findTogether, completeTogether string
	insert, find, replace, retake, extend          string
	complete, completed, owner, release            string
	sweep, stuck, resolve, free                    string
}

func newStatements(table tableName) statements {
	fill := strings.NewReplacer("{{table}}", table.quoted()).Replace
	return statements{
		insertTogether: fill(sqlInsertTogether), findTogether: fill(sqlFindTogether),
		completeTogether: fill(sqlCompleteTogether),
		insert:           fill(sqlInsert), find: fill(sqlFind),
		replace: fill(sqlReplace), retake: fill(sqlRetake), extend: fill(sqlExtend),
		complete: fill(sqlComplete), completed: fill(sqlCompleted),
		owner: fill(sqlOwner), release: fill(sqlRelease),
		sweep: fill(sqlSweep), stuck: fill(sqlStuck), resolve: fill(sqlResolve), free: fill(sqlFree),
	}
}

// Every parameter has a cast, so that pgx may send it in any form; a length of time is a
// number of microseconds. clock_timestamp() and not now(): a lease counts from the
// statement, also in a transaction that began long before.
const (
	// Expired, and no live lease on it. A completed record's lease has ended.
	sqlDead = `expires_at <= clock_timestamp() AND lease_until <= clock_timestamp()`

	// In progress under token $2, even if its lease lapsed while nobody took over.
	sqlOwned = `id = $1::uuid AND token = $2::uuid AND completed_at IS NULL AND NOT (` + sqlDead + `)`

	// Lapsed with no outcome, and not forgotten yet.
	sqlInterrupted = `completed_at IS NULL
		AND lease_until <= clock_timestamp() AND expires_at > clock_timestamp()`

	sqlFromNow   = `clock_timestamp() + interval '1 microsecond' * `
	sqlRecording = `completed_at = clock_timestamp(), lease_until = clock_timestamp(), status = $3::integer,
		header = $4::bytea, body = $5::bytea, ref = $6::bytea, omitted = $7::boolean`

	sqlInsert = `INSERT INTO {{table}} (id, tenant, endpoint, key, fingerprint, token,
			attempt, created_at, lease_until, expires_at)
		VALUES ($1::uuid, $2::text, $3::text, $4::text, $5::bytea, $6::uuid,
			1, clock_timestamp(), ` + sqlFromNow + `$7::bigint, ` + sqlFromNow + `$8::bigint)
		ON CONFLICT (id) DO NOTHING
		RETURNING created_at`

	// The rows come sorted. One key twice is inserted once.
	sqlInsertTogether = `INSERT INTO {{table}} (id, tenant, endpoint, key, fingerprint, token,
			attempt, created_at, lease_until, expires_at)
		SELECT id, tenant, endpoint, key, fingerprint, token, 1, clock_timestamp(),
			` + sqlFromNow + `lease, ` + sqlFromNow + `ttl
		FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::bytea[], $6::uuid[], $7::bigint[], $8::bigint[])
			AS u (id, tenant, endpoint, key, fingerprint, token, lease, ttl)
		ON CONFLICT (id) DO NOTHING
		RETURNING token, created_at`

	// Plain columns, and judged by the caller: measured, what expressions cost the server
	// at every execution was a tenth of a replay. Only a body may be long, and one for
	// another fingerprint is not sent.
	sqlLookFor = `SELECT clock_timestamp(), lease_until, expires_at, created_at, fingerprint, token, attempt,
			status, omitted, header, CASE WHEN fingerprint = `
	sqlLookAt = ` THEN body END, ref FROM {{table}} WHERE id = `

	sqlFind = sqlLookFor + `$2::bytea` + sqlLookAt + `$1::uuid`

	// OFFSET 0 leaves the planner no choice but a look for each, so that a plan it made
	// while the table was small does no harm. Behind the subselects it cannot see how few
	// they are, which would have it make a new plan each time.
	sqlFindTogether = `SELECT r.*, place
		FROM unnest((SELECT $1::uuid[]), (SELECT $2::bytea[])) WITH ORDINALITY AS u (id, fingerprint, place)
		CROSS JOIN LATERAL (` + sqlLookFor + `u.fingerprint` + sqlLookAt + `u.id OFFSET 0) AS r`

	sqlReplace = `UPDATE {{table}} SET token = $2::uuid, fingerprint = $3::bytea, attempt = 1,
			created_at = clock_timestamp(), lease_until = ` + sqlFromNow + `$4::bigint,
			expires_at = ` + sqlFromNow + `$5::bigint, completed_at = NULL,
			status = NULL, header = NULL, body = NULL, ref = NULL, omitted = false
		WHERE id = $1::uuid AND ` + sqlDead + `
		RETURNING attempt, created_at`

	sqlRetake = `UPDATE {{table}} SET token = $2::uuid, attempt = attempt + 1,
			lease_until = ` + sqlFromNow + `$4::bigint
		WHERE id = $1::uuid AND fingerprint = $3::bytea AND ` + sqlInterrupted + `
		RETURNING attempt, created_at`

	sqlExtend = `UPDATE {{table}} SET lease_until = ` + sqlFromNow + `$3::bigint
		WHERE ` + sqlOwned + `
		RETURNING attempt, created_at`

	// The expiry moves only for a run that outlived it, because to change an indexed
	// column is what makes an update dear.
	sqlComplete = `UPDATE {{table}} SET ` + sqlRecording + `, expires_at = CASE
			WHEN expires_at <= clock_timestamp() THEN ` + sqlFromNow + `$8::bigint ELSE expires_at END
		WHERE ` + sqlOwned

	sqlCompleteTogether = `UPDATE {{table}} AS t SET completed_at = clock_timestamp(), lease_until = clock_timestamp(),
			status = u.status, header = u.header, body = u.body, ref = u.ref, omitted = u.omitted,
			expires_at = CASE WHEN expires_at <= clock_timestamp() THEN ` + sqlFromNow + `u.ttl ELSE expires_at END
		FROM unnest($1::uuid[], $2::uuid[], $3::integer[], $4::bytea[], $5::bytea[], $6::bytea[], $7::boolean[], $8::bigint[])
			AS u (id, token, status, header, body, ref, omitted, ttl)
		WHERE t.id = u.id AND t.token = u.token AND completed_at IS NULL AND NOT (` + sqlDead + `)
		RETURNING t.token`

	// The lock makes it wait for a transaction that completes the row just now, and see
	// what became of it; a state among the conditions would be judged before the wait.
	sqlCompleted = `SELECT completed_at IS NOT NULL AND NOT (` + sqlDead + `)
		FROM {{table}} WHERE id = $1::uuid AND token = $2::uuid FOR SHARE`

	sqlOwner = `SELECT token FROM {{table}} WHERE id = $1::uuid FOR SHARE`

	sqlRelease = `DELETE FROM {{table}} WHERE ` + sqlOwned

	// The subselect around the clock lets the index end the scan there: a volatile
	// function by itself is no bound.
	sqlSweep = `WITH swept AS (
			DELETE FROM {{table}} WHERE ctid = ANY (ARRAY(
				SELECT ctid FROM {{table}}
				WHERE expires_at >= coalesce($1::timestamptz, '-infinity') AND expires_at <= (SELECT clock_timestamp())
					AND lease_until <= clock_timestamp()
				ORDER BY expires_at LIMIT $2::bigint
				FOR UPDATE SKIP LOCKED))
			AND ` + sqlDead + `
			RETURNING expires_at)
		SELECT count(*), max(expires_at) FROM swept`

	sqlStuck = `SELECT tenant, endpoint, key, fingerprint, token, attempt, created_at, lease_until, expires_at
		FROM {{table}} WHERE ` + sqlInterrupted + `
		ORDER BY created_at, id LIMIT $1::bigint`

	// An attempt that still runs under the old token, only late, must meet the fence.
	sqlResolve = `UPDATE {{table}} SET ` + sqlRecording + `, token = $8::uuid
		WHERE id = $1::uuid AND token = $2::uuid AND ` + sqlInterrupted

	sqlFree = `DELETE FROM {{table}} WHERE id = $1::uuid AND token = $2::uuid AND ` + sqlInterrupted
)

// postgresRow is a record as it was at now, by the server's clock. Its types are those
// that pgx scans into with the least work.
type postgresRow struct {
	now, leaseUntil, expiresAt, createdAt pgtype.Timestamptz

	fingerprint       []byte
	token             pgtype.UUID
	attempt           int32
	status            pgtype.Int4 // NULL until completed
	omitted           bool
	header, body, ref []byte
}

// columns are where what a look returns belongs.
func (r *postgresRow) columns() []any {
	return []any{
		&r.now, &r.leaseUntil, &r.expiresAt, &r.createdAt, &r.fingerprint, &r.token, &r.attempt,
		&r.status, &r.omitted, &r.header, &r.body, &r.ref,
	}
}

// find returns nil if there is no record.
func (s *PostgresStore) find(ctx context.Context, l look) (*postgresRow, error) {
	if s.looks != nil {
		return s.looks.do(ctx, l)
	}
	return s.findAlone(ctx, l)
}

func (s *PostgresStore) findAlone(ctx context.Context, l look) (*postgresRow, error) {
	r := new(postgresRow)
	if found, err := matched(s.db.QueryRow(ctx, s.sql.find, l.id, l.fingerprint[:]).Scan(r.columns()...)); !found {
		return nil, err
	}
	return r, nil
}

func (r *postgresRow) completed() bool { return r.status.Valid }
func (r *postgresRow) lapsed() bool    { return !r.leaseUntil.Time.After(r.now.Time) }
func (r *postgresRow) dead() bool      { return !r.expiresAt.Time.After(r.now.Time) && r.lapsed() }

func (r *postgresRow) isFor(fp Fingerprint) bool { return string(r.fingerprint) == string(fp[:]) }

// record is the answer to a request of fingerprint fp that does not own the row. A response
// to another one is none of its business.
func (r *postgresRow) record(fp Fingerprint) (Record, error) {
	rec := Record{Attempt: int(r.attempt), CreatedAt: r.createdAt.Time}
	copy(rec.Fingerprint[:], r.fingerprint)
	switch {
	case r.completed():
		rec.State = Completed
		if !r.isFor(fp) {
			break
		}
		header, appended, err := headercode.Decode(r.header)
		if err != nil {
			return Record{}, err
		}
		rec.Response = Response{
			Status: int(r.status.Int32), Header: header, Appended: appended,
			Body: r.body, Ref: string(r.ref), Omitted: r.omitted,
		}
	case r.lapsed():
		rec.State = Interrupted
	default:
		rec.State = InFlight
		rec.LeaseLeft = r.leaseUntil.Time.Sub(r.now.Time)
	}
	return rec, nil
}
