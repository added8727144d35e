package idempotency

import (
	"container/heap"
	"encoding/binary"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/seed-2d1e5f61/idempotency/internal/headercode"
)

// memoryShard is a part of a [MemoryStore] under one lock.
type memoryShard struct {
	mu sync.Mutex
	// index finds a record by its key's hash; records of equal hash are chained. A map
	// by Key itself would take some 80 bytes a record more and hash each key twice.
	index map[uint64]*memoryRecord
	// mortals holds every record, a heap with the one that dies first in front.
	mortals mortals
}

// memoryRecord is what a shard keeps of a key. All but its owner's shard leave it
// alone. Instants are times since the store's epoch. It is small on purpose: there may
// be millions.
type memoryRecord struct {
	key         Key
	fingerprint Fingerprint
	token       uuid.UUID
	createdAt   time.Duration
	expiresAt   time.Duration
	leaseEnd    time.Duration // 0 once completed
	outcome     string        // from encodeOutcome; "" while in progress
	settled     chan struct{} // closed when the claim ends; nil while nobody waits for it
	next        *memoryRecord // of the same hash
	hash        uint64
	attempt     int32
	position    int32 // in mortals
}

func newMemoryRecord(c Claim, now time.Duration) *memoryRecord {
	key := c.Key
	if !c.compact {
		key = compact(key)
	}
	return &memoryRecord{
		key:         key,
		fingerprint: c.Fingerprint,
		token:       c.Token,
		createdAt:   now,
		expiresAt:   after(now, c.TTL),
		leaseEnd:    after(now, c.Lease),
		attempt:     1,
	}
}

// compact returns key with its parts cut from one new string: one allocation for three,
// and no grip on a longer string, such as a request's URL, that a part was cut from.
func compact(key Key) Key {
	whole := key.Tenant + key.Endpoint + key.Value
	end := len(whole) - len(key.Value)
	return Key{whole[:len(key.Tenant)], whole[len(key.Tenant):end], whole[end:]}
}

// after is now + d without overflow: a TTL of the longest Duration means for ever.
func after(now, d time.Duration) time.Duration {
	if sum := now + d; sum > now || d <= 0 {
		return sum
	}
	return math.MaxInt64
}

// diesAt is when the record is as good as none: expired, and no live lease on it.
func (r *memoryRecord) diesAt() time.Duration { return max(r.expiresAt, r.leaseEnd) }

func (r *memoryRecord) dead(now time.Duration) bool { return r.diesAt() <= now }

func (r *memoryRecord) interrupted(now time.Duration) bool {
	return r.outcome == "" && r.leaseEnd <= now
}

// wake ends the wait of everyone who awaits the claim.
func (r *memoryRecord) wake() {
	if r.settled != nil {
		close(r.settled)
		r.settled = nil
	}
}

func (sh *memoryShard) find(hash uint64, key Key) *memoryRecord {
	r := sh.index[hash]
	for r != nil && r.key != key {
		r = r.next
	}
	return r
}

func (sh *memoryShard) insert(hash uint64, r *memoryRecord) *memoryRecord {
	if sh.index == nil {
		sh.index = make(map[uint64]*memoryRecord)
	}
	r.hash, r.next = hash, sh.index[hash]
	sh.index[hash] = r
	heap.Push(&sh.mortals, r)
	return r
}

func (sh *memoryShard) remove(r *memoryRecord) {
	heap.Remove(&sh.mortals, int(r.position))
	first := sh.index[r.hash]
	switch {
	case first != r:
		for first.next != r {
			first = first.next
		}
		first.next = r.next
	case r.next != nil:
		sh.index[r.hash] = r.next
	default:
		delete(sh.index, r.hash)
	}
}

// extend starts the lease of r anew.
func (sh *memoryShard) extend(r *memoryRecord, now, lease time.Duration) {
	sh.reschedule(r, r.expiresAt, after(now, lease))
}

// complete records the outcome of r, and when it is forgotten.
func (sh *memoryShard) complete(r *memoryRecord, outcome string, expiresAt time.Duration) {
	r.outcome = outcome
	sh.reschedule(r, expiresAt, 0)
	r.wake()
}

func (sh *memoryShard) reschedule(r *memoryRecord, expiresAt, leaseEnd time.Duration) {
	r.expiresAt, r.leaseEnd = expiresAt, leaseEnd
	// In the ordinary case the expiry is far behind the lease, and nothing moves.
	if m := &sh.mortals[r.position]; m.diesAt != r.diesAt() {
		m.diesAt = r.diesAt()
		heap.Fix(&sh.mortals, int(r.position))
	}
}

// mortals implements [heap.Interface].
type mortals []mortal

// mortal repeats when its record dies, so that sifting through the heap does not have
// to visit records all over memory.
type mortal struct {
	diesAt time.Duration
	record *memoryRecord
}

func (m mortals) Len() int           { return len(m) }
func (m mortals) Less(i, j int) bool { return m[i].diesAt < m[j].diesAt }

func (m mortals) Swap(i, j int) {
	m[i], m[j] = m[j], m[i]
	m[i].record.position, m[j].record.position = int32(i), int32(j)
}

func (m *mortals) Push(x any) {
	r := x.(*memoryRecord)
	r.position = int32(len(*m))
	*m = append(*m, mortal{r.diesAt(), r})
}

func (m *mortals) Pop() any {
	last := len(*m) - 1
	r := (*m)[last].record
	(*m)[last].record = nil // or the array would keep it from the collector
	*m = (*m)[:last]
	return r
}

// encodeOutcome writes resp as one string: status, the lengths of header and reference,
// these two, and the body as the rest. One piece of memory instead of a dozen, and a
// string because nobody can change it: a replay's header refers to parts of it.
func encodeOutcome(resp Response) string {
	var space [512]byte // enough for most headers
	header := resp.appendHeader(space[:0])

	status := uint64(resp.Status) << 1
	if resp.Omitted {
		status |= 1
	}
	var lengths [3 * binary.MaxVarintLen64]byte
	front := binary.AppendUvarint(lengths[:0], status)
	front = binary.AppendUvarint(front, uint64(len(header)))
	front = binary.AppendUvarint(front, uint64(len(resp.Ref)))

	var b strings.Builder
	b.Grow(len(front) + len(header) + len(resp.Ref) + len(resp.Body))
	b.Write(front)
	b.Write(header)
	b.WriteString(resp.Ref)
	b.Write(resp.Body)
	return b.String()
}

// decodeOutcome reads what encodeOutcome wrote. Nothing of the result that can be
// changed is shared with outcome.
func decodeOutcome(outcome string) (resp Response, err error) {
	resp, header := splitOutcome(outcome)
	resp.Header, resp.Appended, err = headercode.DecodeString(header)
	return resp, err
}

// splitOutcome is decodeOutcome that leaves the header encoded.
func splitOutcome(outcome string) (resp Response, header string) {
	status, rest := cutUvarint(outcome)
	headerLen, rest := cutUvarint(rest)
	refLen, rest := cutUvarint(rest)
	header, rest = rest[:headerLen], rest[headerLen:]

	resp.Status, resp.Omitted = int(status>>1), status&1 == 1
	resp.Ref, resp.Body = rest[:refLen], []byte(rest[refLen:])
	return resp, header
}

func cutUvarint(s string) (n uint64, rest string) {
	n, size := binary.Uvarint([]byte(s[:min(len(s), binary.MaxVarintLen64)]))
	return n, s[size:]
}
