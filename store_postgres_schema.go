package idempotency

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"
)

// tableName is a table's name as it stands in the catalog, in front of it its schema,
// or "".
type tableName struct{ schema, table string }

// maxIdentifier is the length at which PostgreSQL cuts a name in silence.
const maxIdentifier = 63

var tableSyntax = regexp.MustCompile(`^(?:([a-z0-9_]{1,63})\.)?([a-z0-9_]{1,63})$`)

func parseTableName(name string) (tableName, error) {
	if name == "" {
		name = "idempotency_keys"
	}
	parts := tableSyntax.FindStringSubmatch(name)
	if parts == nil {
		return tableName{}, fmt.Errorf("table %q: want [schema.]table, each of 1 to %d lower-case letters, digits and _",
			name, maxIdentifier)
	}
	return tableName{schema: parts[1], table: parts[2]}, nil
}

// quoted is the name in SQL: a reserved word is a name like any other.
func (t tableName) quoted() string {
	if t.schema == "" {
		return quoted(t.table)
	}
	return quoted(t.schema) + "." + quoted(t.table)
}

// quoted needs no escapes, because a name has no quotes.
func quoted(name string) string { return `"` + name + `"` }

// derived names something that belongs to the table. Where the table's name must be cut
// to make room, a digest of all of it keeps two tables apart.
func (t tableName) derived(suffix string) string {
	name := t.table + suffix
	if len(name) > maxIdentifier {
		sum := sha256.Sum256([]byte(t.table))
		suffix = "_" + hex.EncodeToString(sum[:8]) + suffix
		name = t.table[:maxIdentifier-len(suffix)] + suffix
	}
	return name
}

//go:embed internal/migrations/001_keys.sql
var createKeys string

// Each migration brings the table from the version before to its own number, and
// changes nothing where it has been before.
var migrations = []string{createKeys}

// schemaMark is the table's comment, but for the version behind it.
const schemaMark = "idempotency schema "

// Schema returns the SQL that creates the table or brings it up to date, for a
// migration tool to run in [PostgresStore.Migrate]'s place. It may be run again, belongs
// into one transaction, and holds a DO block, of which a tool that splits at semicolons
// must be told.
func (s *PostgresStore) Schema() string { return s.schemaFrom(0) }

func (s *PostgresStore) schemaFrom(version int) string {
	fill := strings.NewReplacer(
		"{{table}}", s.table.quoted(),
		"{{pkey}}", quoted(s.table.derived("_pkey")),
		"{{expires}}", quoted(s.table.derived("_expires_at_idx")),
	)
	sql := fill.Replace(strings.Join(migrations[version:], "\n"))
	return fmt.Sprintf("%s\nCOMMENT ON TABLE %s IS '%s%d';\n", sql, s.table.quoted(), schemaMark, len(migrations))
}

// Migrate creates the table or brings it up to date. Many processes may call it at
// once, and at every start: where the table is up to date it reads one row, and takes
// no lock. It does not create a schema.
func (s *PostgresStore) Migrate(ctx context.Context) error {
	if s.unmade() {
		return failed("Migrate", errUnmade)
	}
	version, err := s.version(ctx, s.db)
	if err == nil && version < len(migrations) {
		err = again(ctx, func() error {
			return pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error { return s.migrate(ctx, tx) })
		})
	}
	if err != nil {
		return failed("Migrate", err)
	}
	return nil
}

// migrate lets in one process at a time, and each sees what the one before has done.
// The lock ends with the transaction, so it holds behind a pooler too. The look at a
// relation behind it makes the session hear of what others have created: it may still
// remember that there was no such table.
func (s *PostgresStore) migrate(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, fmt.Sprintf(
		"SET TRANSACTION ISOLATION LEVEL READ COMMITTED; SELECT pg_advisory_xact_lock(%d); SELECT FROM pg_description LIMIT 0", s.table.lock()))
	if err != nil {
		return err
	}
	version, err := s.version(ctx, tx)
	if err != nil || version >= len(migrations) {
		return err
	}
	_, err = tx.Exec(ctx, s.schemaFrom(version))
	return err
}

// version is 0 for a table that does not exist, or whose comment somebody replaced.
func (s *PostgresStore) version(ctx context.Context, q querier) (version int, err error) {
	var comment *string
	err = q.QueryRow(ctx, `SELECT obj_description(to_regclass($1::text), 'pg_class')`, s.table.quoted()).Scan(&comment)
	if err != nil || comment == nil {
		return 0, err
	}
	_, _ = fmt.Sscanf(*comment, schemaMark+"%d", &version) // another comment is version 0
	return version, nil
}

func (t tableName) lock() int64 {
	sum := sha256.Sum256([]byte(schemaMark + t.quoted()))
	return int64(binary.BigEndian.Uint64(sum[:]))
}
