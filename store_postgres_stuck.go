package idempotency

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// Stuck lists up to limit interrupted claims, those reserved first in front. Whether
// their effects took place is not known: find out, then [PostgresStore.Resolve] them.
// It reads the whole table, because an index on what changes with every completion
// would make each of them dearer; call it from a job or by hand, not per request. A
// limit under 1 is an error.
func (s *PostgresStore) Stuck(ctx context.Context, limit int) ([]StuckClaim, error) {
	if limit < 1 {
		return nil, errStuckLimit
	}
	if s.unmade() {
		return nil, failed("Stuck", errUnmade)
	}
	rows, err := s.db.Query(ctx, s.sql.stuck, limit)
	if err != nil {
		return nil, failed("Stuck", err)
	}
	stuck, err := pgx.CollectRows(rows, scanStuck)
	if err != nil {
		return nil, failed("Stuck", err)
	}
	return stuck, nil
}

func scanStuck(row pgx.CollectableRow) (c StuckClaim, err error) {
	var fingerprint []byte
	var token pgtype.UUID
	err = row.Scan(&c.Key.Tenant, &c.Key.Endpoint, &c.Key.Value, &fingerprint, &token,
		&c.Attempt, &c.CreatedAt, &c.LapsedAt, &c.ExpiresAt)
	copy(c.Fingerprint[:], fingerprint)
	c.Token = token.Bytes
	return c, err
}

// Resolve settles an interrupted claim that [PostgresStore.Stuck] listed: it records
// resp, so that the next retry replays it, or frees the key if resp is nil. It returns
// [ErrClaimLost], and changes nothing, if the claim is no longer the one listed: it was
// taken over, extended, settled or forgotten. An attempt that still runs under token,
// only late, has lost its claim from then on. A status other than 200 to 999 is an error;
// 0 counts as 200.
func (s *PostgresStore) Resolve(ctx context.Context, key Key, token uuid.UUID, resp *Response) error {
	if err := checkResolution(resp); err != nil {
		return err
	}
	return s.settle(ctx, "Resolve", func() (bool, error) {
		sql, args := s.sql.free, []any{uuidOf(key.id()), uuidOf(token)}
		if resp != nil {
			o := outcomeOf(Claim{Key: key, Token: token}, *resp)
			sql, args = s.sql.resolve, append(o.args(), uuidOf(uuid.New()))
		}
		tag, err := s.db.Exec(ctx, sql, args...)
		return tag.RowsAffected() == 1, err
	})
}
