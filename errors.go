package idempotency

import (
	"cmp"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"
)

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

	// ErrClaimLost comes from a [Store]: the token does not own the key. The cause of a
	// handler's context that ended because its claim was lost matches it too, and says
	// why if the store could not be reached.
	ErrClaimLost = errors.New("idempotency: claim lost")
	// ErrStoreFull comes from [MemoryStore] at MaxRecords.
	ErrStoreFull = errors.New("idempotency: store full")
	// ErrNoResponse comes from [PostgresStore.InTx] when its function wrote no response.
	ErrNoResponse = errors.New("idempotency: no response written in transaction")
)

// errMisuse is the developer's mistake, not the client's: 500 internal_error.
var errMisuse = errors.New("idempotency: misconfigured")

// problem is what an error's code means to a client. The text of an error never is:
// it may come from a store, or name what a client must not see.
type problem struct {
	sentinel error
	status   int
	code     string
	title    string
	detail   string
}

const (
	keyDetail       = "The Idempotency-Key header must come once and hold a key of 1 to 255 visible ASCII characters"
	strictKeyDetail = keyDetail + " in double quotes, as a String (RFC 9651), in the form that this API asks for."

	// The client has sent its body whole.
	readOutsideDetail = "The server could not process the request body, by a mistake of its own. Nothing was done."
)

var problems = []problem{
	{ErrKeyMissing, http.StatusBadRequest, "idempotency_key_missing", "Idempotency key missing",
		"This operation needs an Idempotency-Key header: one new key for each operation, kept over retries."},
	{ErrKeyInvalid, http.StatusBadRequest, "idempotency_key_invalid", "Idempotency key invalid",
		keyDetail + ", quoted as a String (RFC 9651) or bare without quotes and commas, in the form that this API asks for."},
	{ErrKeyReused, http.StatusUnprocessableEntity, "idempotency_key_reused", "Idempotency key reused",
		"This key was first used for another request. Send the first request again unchanged, or this one under a new key."},
	{ErrKeyInFlight, http.StatusConflict, "idempotency_key_in_flight", "Request in flight",
		"The first request with this key is still being processed. Try again later, with the same key."},
	{ErrOutcomeUnknown, http.StatusConflict, "idempotency_outcome_unknown", "Outcome unknown",
		"The first request with this key was interrupted, and whether it took effect is not known yet. Do not send it under a new key."},
	{ErrTenantUnknown, http.StatusForbidden, "idempotency_tenant_unknown", "Tenant unknown",
		"The request does not say on whose behalf it is made."},
	{ErrBodyTooLarge, http.StatusRequestEntityTooLarge, "request_body_too_large", "Request body too large",
		"The request body is longer than this operation accepts. Nothing was done."},
	{ErrBodyRead, http.StatusBadRequest, "request_body_unreadable", "Request body unreadable",
		"The request body could not be read whole. Nothing was done."},
	{ErrUnavailable, http.StatusServiceUnavailable, "idempotency_unavailable", "Temporarily unavailable",
		"The request could not be processed safely right now. Try again later, with the same key."},
}

var internalProblem = problem{errMisuse, http.StatusInternalServerError, "internal_error", "Internal server error",
	"The server could not process the request."}

func problemOf(err error) problem {
	for _, p := range problems {
		if errors.Is(err, p.sentinel) {
			return p
		}
	}
	return internalProblem
}

// requestError is an error on its way to [Config.ErrorHandler]: the sentinel that
// callers match, the cause, and what [WriteError] needs beyond the two.
type requestError struct {
	sentinel   error
	cause      error  // nil, or what the sentinel came from
	secret     bool   // the cause's text may show the key: it stays out of Error
	status     int    // 0: the sentinel's
	detail     string // what the client is told; "": the sentinel's
	retryAfter int    // seconds; 0: none
	docsURL    string
	header     string // Config.Header, which a client is told to send
}

func (e *requestError) Error() string {
	if e.cause == nil || e.secret {
		return e.sentinel.Error()
	}
	return e.sentinel.Error() + ": " + e.cause.Error()
}

func (e *requestError) Unwrap() []error {
	if e.cause == nil {
		return []error{e.sentinel}
	}
	return []error{e.sentinel, e.cause}
}

func (e *requestError) statusCode() int {
	if e.status != 0 {
		return e.status
	}
	return problemOf(e.sentinel).status
}

// retrySoon is the Retry-After, in seconds, where nobody knows a better one: of a 503,
// since the request has waited for the store already, and of a bare sentinel.
const retrySoon = 1

// retrySeconds is d in whole seconds, rounded up, at least 1: the unit of Retry-After.
func retrySeconds(d time.Duration) int {
	return max(1, int((d+time.Second-1)/time.Second))
}

// problemJSON is a problem details object (RFC 9457), with code as an extension.
type problemJSON struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	Code   string `json:"code"`
}

// WriteError answers err as application/problem+json (RFC 9457) with type, title,
// status, detail and code, and Cache-Control: no-store. It is what a nil
// [Config.ErrorHandler] does, and what a custom one may call for the errors that it
// does not answer itself: an error from the middleware carries its status, its
// Retry-After and Config.DocsURL. A bare sentinel such as [ErrKeyReused] is answered
// with its usual status, [ErrKeyInFlight] and [ErrUnavailable] with a Retry-After of 1 s
// unless w has one, any other error with 500. No error's text reaches the client.
func WriteError(w http.ResponseWriter, r *http.Request, err error) {
	e := &requestError{sentinel: err}
	errors.As(err, &e)
	p := problemOf(e.sentinel) // not of err: a cause may wrap another sentinel
	if e.status != 0 {
		p.status = e.status
	}

	h := w.Header()
	// What outer layers prepared for the representation they expected is not true of
	// this one.
	for _, name := range []string{"Content-Length", "Content-Encoding", "Content-Language", "Content-Disposition", "Etag", "Last-Modified"} {
		h.Del(name)
	}
	typeURL := "about:blank"
	if e.docsURL != "" {
		typeURL = e.docsURL
		h.Add("Link", "<"+e.docsURL+`>; rel="describedby"`)
	}
	switch {
	case e.retryAfter > 0:
		h.Set("Retry-After", strconv.Itoa(e.retryAfter))
	case (p.sentinel == ErrKeyInFlight || p.sentinel == ErrUnavailable) && h.Get("Retry-After") == "":
		// A bare sentinel does not know when, but without it a client takes the answer
		// for final.
		h.Set("Retry-After", strconv.Itoa(retrySoon))
	}
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(p.status)

	// Encoding these fields cannot fail, and a client that is gone cannot be told.
	detail := strings.Replace(cmp.Or(e.detail, p.detail), defaultHeader, cmp.Or(e.header, defaultHeader), 1)
	body, _ := json.Marshal(problemJSON{typeURL, p.title, p.status, detail, p.code})
	w.Write(append(body, '\n'))
}
