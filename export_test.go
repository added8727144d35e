package idempotency

// Crowd has any two callers at once share statements.
func (s *PostgresStore) Crowd() {
	crowd := limits{few: 1, crowd: 1, calls: 4}
	s.insertions.limits, s.looks.limits, s.completions.limits = crowd, crowd, crowd
}
