package charges

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed-2d1e5f61/idempotency"
)

// schema may run in many processes at once: the lock, held until the statements commit
// together, keeps CREATE IF NOT EXISTS from colliding with itself.
const schema = `
SELECT pg_advisory_xact_lock(hashtext('payments example'));
CREATE TABLE IF NOT EXISTS charges (
	id       text PRIMARY KEY,
	tenant   text NOT NULL,
	amount   bigint NOT NULL CHECK (amount > 0),
	currency text NOT NULL,
	order_id text,
	created  timestamptz NOT NULL
);
CREATE INDEX IF NOT EXISTS charges_tenant ON charges (tenant, created);
CREATE UNIQUE INDEX IF NOT EXISTS charges_order ON charges (tenant, order_id)
	WHERE order_id IS NOT NULL;
CREATE TABLE IF NOT EXISTS card_network (LIKE charges INCLUDING CONSTRAINTS, PRIMARY KEY (id));
`

const (
	columns = `id, tenant, amount, currency, coalesce(order_id, ''), created`
	values  = `(id, tenant, amount, currency, order_id, created) VALUES ($1, $2, $3, $4, nullif($5, ''), $6)`
)

func (c Charge) values() []any {
	return []any{c.ID, c.Tenant, c.Amount, c.Currency, c.OrderID, c.Created}
}

// Migrate creates the tables of [PostgresLedger] and [PostgresNetwork].
func Migrate(ctx context.Context, db *pgxpool.Pool) error {
	_, err := db.Exec(ctx, schema)
	return err
}

// PostgresLedger is a [Ledger] in the database of the idempotency records.
type PostgresLedger struct {
	DB    *pgxpool.Pool
	Store *idempotency.PostgresStore
}

// Add implements [Ledger]. The charge and the record of the response commit together,
// so neither is ever there without the other.
func (l *PostgresLedger) Add(ctx context.Context, c Charge, respond func()) error {
	err := l.Store.InTx(ctx, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO charges `+values+` ON CONFLICT (id) DO NOTHING`, c.values()...)
		if err != nil {
			return err
		}
		respond()
		return nil
	})
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && pgErr.ConstraintName == "charges_order" {
		return ErrOrderCharged
	}
	return err
}

// Find implements [Ledger].
func (l *PostgresLedger) Find(ctx context.Context, tenant, id string) (Charge, error) {
	return one(l.DB.Query(ctx, `SELECT `+columns+` FROM charges WHERE tenant = $1 AND id = $2`, tenant, id))
}

// List implements [Ledger].
func (l *PostgresLedger) List(ctx context.Context, tenant string) ([]Charge, error) {
	rows, err := l.DB.Query(ctx, `SELECT `+columns+` FROM charges WHERE tenant = $1 ORDER BY created DESC, id`, tenant)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Charge])
}

// PostgresNetwork is a [Network] that outlives the process. That it uses the same
// database is for convenience alone: it is never part of a ledger's transaction.
type PostgresNetwork struct {
	DB      *pgxpool.Pool
	Latency time.Duration // of each charge
}

// Charge implements [Network].
func (n *PostgresNetwork) Charge(ctx context.Context, c Charge, source string) (Charge, error) {
	if err := swipe(ctx, n.Latency, source); err != nil {
		return Charge{}, err
	}
	_, err := n.DB.Exec(ctx, `INSERT INTO card_network `+values+` ON CONFLICT (id) DO NOTHING`, c.values()...)
	if err != nil {
		return Charge{}, err
	}
	first, err := n.Find(ctx, c.ID)
	if err == nil && !sameMoney(first, c) {
		return Charge{}, ErrIDReused
	}
	return first, err
}

// Refund implements [Network].
func (n *PostgresNetwork) Refund(ctx context.Context, id string) error {
	_, err := n.DB.Exec(ctx, `DELETE FROM card_network WHERE id = $1`, id)
	return err
}

// Find returns the charge that the network made under id, or ErrNotFound.
func (n *PostgresNetwork) Find(ctx context.Context, id string) (Charge, error) {
	return one(n.DB.Query(ctx, `SELECT `+columns+` FROM card_network WHERE id = $1`, id))
}

func one(rows pgx.Rows, err error) (Charge, error) {
	if err != nil {
		return Charge{}, err
	}
	c, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[Charge])
	if errors.Is(err, pgx.ErrNoRows) {
		return Charge{}, ErrNotFound
	}
	return c, err
}
