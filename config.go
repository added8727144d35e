package idempotency

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/textproto"
	"slices"
	"strings"
	"time"
)

// Config says what a [Middleware] protects and how. Only Tenant is required: every
// zero value below is a default that is safe for payments. [New] checks all of it.
type Config struct {
	_ [0]func() // keyed literals only

	// Whose key, for which operation.

	// Tenant says on whose behalf a request is made: an account, taken from what an
	// outer layer has authenticated. Two tenants never see each other's records. An
	// error, or "", is ErrTenantUnknown; the error is in Event.Err, neither logged nor
	// sent. Required; SingleTenant opts out.
	Tenant func(*http.Request) (string, error)
	// Endpoint names the operation, so that one key may be used once for each. Nil:
	// the method and the escaped path. AnyEndpoint: a key is used once in all.
	Endpoint func(*http.Request) string
	// Methods that are protected, in upper case; nil: POST and PATCH. Others pass through
	// untouched.
	Methods []string

	// The key.

	// Header is the field that carries the key. "": Idempotency-Key. It must differ from
	// the fields that mark a replay: ReplayedHeader, and Idempotency-Replay.
	Header string
	// KeyOptional runs a request without a key unprotected, instead of answering 400:
	// FromContext is nil for it, and PostgresStore.InTx a plain transaction.
	KeyOptional bool
	// StrictKey takes a key only as a quoted String (RFC 9651), as the IETF draft asks.
	// Otherwise a key may also come bare, as most clients send it; "k" in quotes and k
	// bare are one key.
	StrictKey bool
	// CheckKey is a further demand on the key, such as CheckUUID. Its error is 400; the
	// error's text is neither logged nor sent, since it may show the key. Nil: none.
	CheckKey func(string) error

	// The request.

	// Fingerprint gives what must be equal for a request to be a retry, besides the
	// method, the escaped path and the raw query, which always count. Nil:
	// FingerprintBody. r.Body is read already; body must be neither kept nor changed. The
	// request's header and trailers count only if it says so. An error is answered 500 and
	// nothing is reserved.
	Fingerprint func(r *http.Request, body []byte) ([]byte, error)
	// MaxRequestBytes bounds the body, which is read whole before anything is reserved.
	// 0: 1 MiB. A longer body is 413.
	MaxRequestBytes int64

	// The run.

	// Lease is how long a claim stays live after a process died with it. It is renewed
	// while the handler runs: it bounds how late a crash is noticed, not the handler. But
	// a handler whose lease cannot be renewed for a whole Lease, because the store is out
	// of reach, loses its claim: its context ends, and its outcome is not recorded.
	// 0: 30 s. It may not be shorter than 1 ms.
	Lease time.Duration
	// HandlerTimeout ends the handler's context. 0: it has no deadline. The client's
	// own leaving never ends it.
	HandlerTimeout time.Duration
	// StoreTimeout is the longest that one step, to reserve or to record, may go on
	// trying. Before the handler has run, a failure that no second try can mend, such as
	// a missing table, ends it at once. 0: 5 s. It may not be shorter than 1 ms.
	StoreTimeout time.Duration
	// AfterCrash says what a retry meets when the process died in the handler. 0: Hold.
	AfterCrash AfterCrash
	// Wait is how long a duplicate waits for the response of the request in flight
	// before it is answered 409. 0: not at all.
	Wait time.Duration

	// The record.

	// TTL is how long a record lives from its reservation, by the store's clock.
	// 0: 24 h. It may not be shorter than Lease.
	TTL time.Duration
	// Keep says which responses are recorded, by status; nil: all of them. When it
	// says false the response is sent but not recorded, and the key is free again.
	Keep func(status int) bool
	// ReplayHeaders are the response fields that are recorded. Nil:
	// DefaultReplayHeaders, which a list replaces and does not add to. Fields that belong
	// to one connection or one moment (the hop-by-hop ones, Date, Content-Length,
	// Set-Cookie) are refused.
	ReplayHeaders []string
	// MaxResponseBytes bounds the recorded body. 0: 1 MiB. A longer one still reaches
	// the client whole; its record is Omitted, and a replay has an empty body.
	MaxResponseBytes int64
	// Rebuild answers a replay whose record holds a ref (Attempt.KeepRef) in the
	// body's place. It finds the recorded header and the replay marker set, and writes
	// the body; the status is the recorded one if it writes none. Nil: such a replay
	// has an empty body, like an Omitted one.
	Rebuild func(w http.ResponseWriter, r *http.Request, ref string)

	// The surroundings.

	// FailOpen runs the handler unprotected when the store is down, as KeyOptional does
	// without a key, instead of answering 503. Not for money.
	FailOpen bool
	// ReplayedHeader marks a replay, with the value true. "": Idempotent-Replayed. It
	// must not be Idempotency-Replay, which marks a replay without its body.
	ReplayedHeader string
	// DocsURL is the API's own page on keys, a URL or a reference to one: the type of
	// problem responses, and a Link with rel="describedby".
	DocsURL string
	// ErrorHandler answers in the handler's place; nil: WriteError. Retry-After and
	// Connection are set before the call. The error matches this package's sentinels
	// with errors.Is.
	ErrorHandler func(http.ResponseWriter, *http.Request, error)
	// Observe is told every request's outcome, from many goroutines at once. It must not
	// block. Nil: nobody is told.
	Observe func(context.Context, Event)
	// Logger gets warnings and errors, never a raw key. Nil: slog.Default().
	Logger *slog.Logger
}

// DefaultReplayHeaders are the response fields that are recorded when
// Config.ReplayHeaders is nil. Do not modify.
var DefaultReplayHeaders = []string{
	"Content-Type", "Content-Encoding", "Content-Language", "Content-Disposition", "Content-Location",
	"Location", "Link", "ETag", "Last-Modified", "Retry-After",
}

// SingleTenant is the [Config.Tenant] of a service that has no tenants: always
// "single". With it, whoever knows a key of somebody else's is given their response.
func SingleTenant(*http.Request) (string, error) { return "single", nil }

// AnyEndpoint is a [Config.Endpoint] for clients that use a key once in all, whatever
// the operation. Used for another one, it is answered 422.
func AnyEndpoint(*http.Request) string { return "" }

// AfterCrash says what happens to a key whose attempt died without an outcome.
type AfterCrash int

const (
	// Hold answers 409 ErrOutcomeUnknown until the TTL ends or the record is resolved
	// (PostgresStore.Stuck and Resolve). For effects outside of the database.
	Hold AfterCrash = iota
	// Rerun lets the next request with the same fingerprint run the handler again, with
	// Attempt.Number() > 1. For handlers whose effects are all in PostgresStore.InTx, or
	// whose calls downstream carry keys from Attempt.Derive.
	Rerun
)

// The defaults of Config and Consumer.
const (
	defaultHeader         = "Idempotency-Key"
	defaultReplayedHeader = "Idempotent-Replayed"
	defaultMaxBytes       = 1 << 20
	defaultLease          = 30 * time.Second
	defaultStoreTimeout   = 5 * time.Second
	defaultTTL            = 24 * time.Hour
)

// omittedHeader marks a replay whose body was not kept.
const omittedHeader = "Idempotency-Replay"

func (c Config) withDefaults() Config {
	orDefault := func(d *time.Duration, value time.Duration) {
		if *d == 0 {
			*d = value
		}
	}
	orDefault(&c.Lease, defaultLease)
	orDefault(&c.StoreTimeout, defaultStoreTimeout)
	orDefault(&c.TTL, defaultTTL)
	if c.Methods == nil {
		c.Methods = []string{http.MethodPost, http.MethodPatch}
	}
	if c.ReplayHeaders == nil {
		c.ReplayHeaders = DefaultReplayHeaders
	}
	if c.Header == "" {
		c.Header = defaultHeader
	}
	if c.ReplayedHeader == "" {
		c.ReplayedHeader = defaultReplayedHeader
	}
	if c.MaxRequestBytes == 0 {
		c.MaxRequestBytes = defaultMaxBytes
	}
	if c.MaxResponseBytes == 0 {
		c.MaxResponseBytes = defaultMaxBytes
	}
	if c.ErrorHandler == nil {
		c.ErrorHandler = WriteError
	}
	return c
}

func (c *Config) keeps(status int) bool { return c.Keep == nil || c.Keep(status) }

// notReplayable are fields that describe one connection, one message or one moment,
// and so would be wrong, or somebody else's, on a replay.
var notReplayable = []string{
	"Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Connection",
	"Te", "Trailer", "Transfer-Encoding", "Upgrade", "Date", "Content-Length", "Set-Cookie",
}

// notKeys are fields that hold a secret, or what is equal in many operations.
var notKeys = []string{"Authorization", "Proxy-Authorization", "Cookie", "Content-Type", "Content-Length", "Host"}

// check returns every problem of c, whose defaults are filled in.
func (c Config) check() []error {
	var errs []error
	problem := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf("idempotency: Config."+format, args...))
		}
	}

	problem(c.Tenant == nil, "Tenant is required (SingleTenant opts out)")
	problem(len(c.Methods) == 0, "Methods is empty: nothing would be protected (nil means POST and PATCH)")
	for _, method := range c.Methods {
		upper := strings.ToUpper(method)
		problem(!isToken(method), "Methods: %q is not a method", method)
		problem(isToken(method) && method != upper, "Methods: %q is not in upper case: %q", method, upper)
	}
	problem(!isToken(c.Header), "Header: %q is not a field name", c.Header)
	problem(slices.Contains(notKeys, http.CanonicalHeaderKey(c.Header)), "Header: %s is no place for a key, which is stored as it is", c.Header)
	problem(!isToken(c.ReplayedHeader), "ReplayedHeader: %q is not a field name", c.ReplayedHeader)
	problem(strings.EqualFold(c.Header, c.ReplayedHeader), "Header and ReplayedHeader are both %s", c.Header)
	problem(strings.EqualFold(c.Header, omittedHeader), "Header is %s, which marks a replay without its body", omittedHeader)
	problem(strings.EqualFold(c.ReplayedHeader, omittedHeader), "ReplayedHeader is %s, which marks a replay without its body", omittedHeader)

	problem(c.MaxRequestBytes < 0, "MaxRequestBytes is negative")
	problem(c.MaxResponseBytes < 0, "MaxResponseBytes is negative")
	problem(c.Lease < 0, "Lease is negative")
	problem(c.HandlerTimeout < 0, "HandlerTimeout is negative")
	problem(c.StoreTimeout < 0, "StoreTimeout is negative")
	problem(c.Wait < 0, "Wait is negative")
	problem(c.TTL < 0, "TTL is negative")
	problem(c.TTL >= 0 && c.TTL < c.Lease, "TTL (%v) is shorter than Lease (%v)", c.TTL, c.Lease)
	problem(c.Lease > 0 && c.Lease < minLease, "Lease (%v) is shorter than %v", c.Lease, minLease)
	problem(c.StoreTimeout > 0 && c.StoreTimeout < minStoreTimeout, "StoreTimeout (%v) is shorter than %v", c.StoreTimeout, minStoreTimeout)
	problem(c.AfterCrash != Hold && c.AfterCrash != Rerun, "AfterCrash: %d is neither Hold nor Rerun", c.AfterCrash)

	for _, name := range c.ReplayHeaders {
		canonical := textproto.CanonicalMIMEHeaderKey(name)
		problem(!isToken(name), "ReplayHeaders: %q is not a field name", name)
		problem(slices.Contains(notReplayable, canonical), "ReplayHeaders: %s cannot be replayed", canonical)
	}
	problem(strings.ContainsFunc(c.DocsURL, isNotURLChar), "DocsURL: %q is not a URL", c.DocsURL)
	return errs
}

// minLease leaves a renewal, which comes at a third of the lease, time to be answered.
const minLease = time.Millisecond

// minStoreTimeout leaves the parts that a step's time is divided into longer than nothing.
const minStoreTimeout = time.Millisecond

// isToken reports whether s is a token of RFC 9110, section 5.6.2: what methods and
// field names are made of.
func isToken(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(c rune) bool {
		return c <= ' ' || c >= 0x7f || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, c)
	})
}

// isNotURLChar finds what would break out of a Link field's <...>.
func isNotURLChar(c rune) bool { return c <= ' ' || c >= 0x7f || c == '<' || c == '>' || c == '"' }
