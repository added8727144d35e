package idempotency

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// errUnmade is what every call of a store says that has no database.
var errUnmade = errors.New("the store was not made by NewPostgresStore")

func (s *PostgresStore) unmade() bool { return s == nil || s.db == nil }

// judged marks what trying again does not mend, and adds to it what a newcomer has to do.
func judged(err error) error {
	if errors.Is(err, errUnmade) || errors.Is(err, errUnstorable) {
		return &permanentError{err}
	}
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) || !needsRepair(pgErr.Code) {
		return err
	}
	if pgErr.Code == undefinedTable {
		err = fmt.Errorf("the table does not exist, was Migrate run? %w", err)
	}
	return &permanentError{err}
}

const (
	undefinedTable             = "42P01"
	duplicatePreparedStatement = "42P05"
)

// needsRepair reports whether the server will say the same until somebody changes the
// database, its roles or its name in the connection string.
func needsRepair(sqlState string) bool {
	if sqlState == duplicatePreparedStatement {
		return false // behind a pooler: another connection may not have it
	}
	for _, class := range []string{
		"28", // invalid authorization
		"3D", // no such database
		"3F", // no such schema
		"42", // undefined table or column, no privilege
	} {
		if strings.HasPrefix(sqlState, class) {
			return true
		}
	}
	return false
}

const maxAgain = 8

// again repeats op while the server rolls it back to let others pass, a bounded number
// of times. Such a statement has changed nothing. The waits are short and spread, so
// that those who met do not meet again: 0.2 s together at most.
func again(ctx context.Context, op func() error) error {
	for n := range maxAgain {
		err := op()
		if !rolledBack(err) {
			return err
		}
		if pause(ctx, rand.N(min(2*time.Millisecond<<n, 50*time.Millisecond))) != nil {
			return err
		}
	}
	return op()
}

func rolledBack(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) &&
		(pgErr.Code == "40001" || pgErr.Code == "40P01") // serialization failure, deadlock
}
