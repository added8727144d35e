// Package idempotency makes net/http handlers safe to retry.
//
// A client that lost the response to POST /charges does not know whether the card
// was charged. It makes one key for each business operation, sends it as the
// Idempotency-Key header, and keeps it over retries. The [Middleware] reserves a row
// for (tenant, endpoint, key) under a unique constraint before it calls the handler,
// records the response, and answers every retry from the record:
//
//	m, err := idempotency.New(store, idempotency.Config{Tenant: tenantOf})
//	...
//	http.Handle("POST /charges", m.Handler(createCharge))
//
// A retry that comes while the first request runs is answered 409, one with another
// payload 422, one without a key 400. The handler runs at most once at a time for a
// key, and not at all once an outcome is recorded, until the record's TTL ends.
// Effects in the same PostgreSQL database happen exactly once inside
// [PostgresStore.InTx].
//
// [PostgresStore] is the store for production, [MemoryStore] the one for tests and
// for a single process. [Transport] is the client's side: one key outside the retry
// loop. [Consumer] is the same discipline for messages that are delivered at least
// once.
//
// The header and the statuses 400, 409 and 422 follow
// draft-ietf-httpapi-idempotency-key-header, which is not an RFC yet; quoted keys are
// Strings of RFC 9651, errors are problem details of RFC 9457.
package idempotency

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"net/http"

	"github.com/google/uuid"

	"github.com/seed-2d1e5f61/idempotency/internal/headercode"
)

// Key names one operation: whose it is, which it is, and the client's identifier for
// it. The three are never joined into one string, so no choice of values makes two
// keys meet.
type Key struct {
	Tenant   string // what Config.Tenant gave; "single" with SingleTenant
	Endpoint string // what Config.Endpoint gave; "" with AnyEndpoint
	Value    string // what the client sent, without quotes
}

// digest identifies the key where the key itself must not be shown: each part goes in
// behind its length, so that ("a", "b") and ("ab", "") differ.
func (k Key) digest() [sha256.Size]byte {
	buf := make([]byte, 0, 256)
	buf = appendFramed(buf, k.Tenant)
	buf = appendFramed(buf, k.Endpoint)
	buf = appendFramed(buf, k.Value)
	return sha256.Sum256(buf)
}

// id is the first half of the digest: the primary key in PostgreSQL, and in hex what
// logs and events show, so that an operator finds the row of a log line.
func (k Key) id() [16]byte {
	sum := k.digest()
	return [16]byte(sum[:16])
}

func (k Key) hash() string {
	id := k.id()
	return hex.EncodeToString(id[:])
}

// appendFramed appends the length of part, then part. Parts framed so cannot be
// shifted against one another.
func appendFramed[T string | []byte](dst []byte, part T) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(len(part)))
	return append(dst, part...)
}

// Fingerprint is a SHA-256 digest of what a key was first used for: the method, the
// escaped path, the raw query and what [Config.Fingerprint] gives for the body.
type Fingerprint [sha256.Size]byte

// Response is a recorded outcome. A [Store] keeps every field, the header's names and
// values byte for byte and in order, a name without values included.
type Response struct {
	Status int         // 200 to 999; 0, as a Consumer leaves it, is replayed as 200
	Header http.Header // only what Config.ReplayHeaders lets through

	// Appended lists the names in Header whose values were added behind values that
	// outer layers had set; a replay appends them again. All others are set.
	Appended []string

	Body    []byte
	Ref     string // from Attempt.KeepRef: Body is empty and Config.Rebuild makes it again
	Omitted bool   // the body was longer than Config.MaxResponseBytes and was not kept

	// fields are Header and Appended, which are empty then, in one piece of memory: so
	// the middleware gives them to this package's own stores, which keep no map. No other
	// store sees them.
	fields []headercode.Field
}

// NewKey returns a new random key, a UUIDv4. Make one for each business operation,
// outside any retry loop, and store it with the operation if a restarted process must
// be able to go on with it.
func NewKey() string { return uuid.NewString() }

type contextKey int

const (
	sentKey contextKey = iota // the string of WithKey
	attemptKey
	heldKey // the *heldWriter of an unprotected run
)

// WithKey returns a context that makes [Transport] send key with a request that has
// no Idempotency-Key header of its own.
func WithKey(ctx context.Context, key string) context.Context {
	return context.WithValue(ctx, sentKey, key)
}

var (
	errNotUUID    = errors.New("idempotency: key is not a UUID of 36 characters")
	errReservedID = errors.New("idempotency: key is the nil or the max UUID, which nobody made")
)

// CheckUUID is a [Config.CheckKey] for an API that asks for UUIDs: 36 characters in the
// form of RFC 9562, of any version and in either case, without braces or prefix. Keys
// that differ by case are still different keys. The nil UUID (all zeros) and the max UUID
// (all ones) are refused: they stand for no UUID at all, such as a variable that was never
// set, and requests would share them. Its error has no part of the key.
func CheckUUID(key string) error {
	id, err := uuid.Parse(key)
	switch {
	case len(key) != 36 || err != nil:
		return errNotUUID
	case id == uuid.Nil || id == uuid.Max:
		return errReservedID
	}
	return nil
}
