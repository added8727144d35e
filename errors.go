package idempotency

import "errors"

// What a request, a store or a consumer may fail with. Errors that reach
// [Config.ErrorHandler], [Event] or a caller match these with errors.Is.
var (
	// ErrKeyMissing: 400 idempotency_key_missing.
	ErrKeyMissing = errors.New("idempotency: key missing")
	// ErrKeyInvalid: 400 idempotency_key_invalid.
	ErrKeyInvalid = errors.New("idempotency: key invalid")
	// ErrKeyReused: 422 idempotency_key_reused. The key was first used for another request.
	ErrKeyReused = errors.New("idempotency: key reused for another request")
	// ErrKeyInFlight: 409 idempotency_key_in_flight, with Retry-After.
	ErrKeyInFlight = errors.New("idempotency: key in flight")
	// ErrOutcomeUnknown: 409 idempotency_outcome_unknown. The attempt that held the key
	// stopped without an outcome, and [Hold] keeps others from running.
	ErrOutcomeUnknown = errors.New("idempotency: outcome unknown")
	// ErrTenantUnknown: 403 idempotency_tenant_unknown.
	ErrTenantUnknown = errors.New("idempotency: tenant unknown")
	// ErrBodyTooLarge: 413 request_body_too_large.
	ErrBodyTooLarge = errors.New("idempotency: request body too large")
	// ErrBodyRead: 400 or 408 request_body_unreadable; 500 if something outside had
	// read the body already.
	ErrBodyRead = errors.New("idempotency: request body unreadable")
	// ErrUnavailable: 503 idempotency_unavailable, with Retry-After. It wraps the
	// store's error.
	ErrUnavailable = errors.New("idempotency: store unavailable")

	// ErrClaimLost comes from a [Store]: the token does not own the key. It is also the
	// cause of a handler's context that ended because its claim was lost.
	ErrClaimLost = errors.New("idempotency: claim lost")
	// ErrStoreFull comes from [MemoryStore] at MaxRecords.
	ErrStoreFull = errors.New("idempotency: store full")
	// ErrNoResponse comes from [PostgresStore.InTx] when its function wrote no response.
	ErrNoResponse = errors.New("idempotency: no response written in transaction")
)
