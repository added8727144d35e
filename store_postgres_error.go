package idempotency

import "errors"

// errUnmade is what every call of a store says that has no database.
var errUnmade = errors.New("the store was not made by NewPostgresStore")

func (s *PostgresStore) unmade() bool { return s == nil || s.db == nil }
