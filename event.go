package idempotency

import "time"

// Event is one request's outcome, for logs, metrics and traces. A request that passes
// through by its method has none.
type Event struct {
	Outcome  Outcome
	Tenant   string
	Endpoint string
	KeyHash  string        // a digest of the whole Key in hex, never the key; "" if the request has none
	Status   int           // answered, or 500 if the handler panicked; 0 if nobody is left to answer, or if Unprotected
	Attempt  int           // the record's; 0 without a record
	Duration time.Duration // from the request's arrival at the middleware
	Err      error         // what was answered or went wrong; nil when Executed, Released or Replayed, unless the handler panicked
}

// Outcome says how a request ended.
type Outcome string

const (
	Executed       Outcome = "executed"        // ran and recorded
	Released       Outcome = "released"        // ran, key free again
	Replayed       Outcome = "replayed"        // answered from the record
	Conflict       Outcome = "conflict"        // 409, in flight
	OutcomeUnknown Outcome = "outcome_unknown" // 409, held after a crash
	Mismatch       Outcome = "mismatch"        // 422
	Rejected       Outcome = "rejected"        // 400, 403, 408, 413, 500: nothing reserved
	Unavailable    Outcome = "unavailable"     // 503, nothing run
	Unprotected    Outcome = "unprotected"     // FailOpen, or KeyOptional without a key
	Unrecorded     Outcome = "unrecorded"      // ran, response sent, record not written: the store failed or the claim was lost
)
