// Package headercode writes HTTP header fields as bytes and reads them back exactly:
// values line by line, names without values included. Stores use it because JSON and
// the wire form of HTTP both lose something.
package headercode

import (
	"encoding/binary"
	"errors"
	"maps"
	"net/http"
	"slices"
)

// version is the first byte of every encoding, so that a later form can be told apart.
const version = 1

var errCorrupt = errors.New("idempotency: corrupt header encoding")

// Append appends the encoding of h to dst. The names in appended are marked, and
// Decode gives them back. Equal headers have equal encodings.
func Append(dst []byte, h http.Header, appended []string) []byte {
	if len(h) == 0 {
		return dst
	}
	var space [16]string // sorting in place keeps a small header off the heap
	names := slices.AppendSeq(space[:0], maps.Keys(h))
	slices.Sort(names)

	dst = append(dst, version)
	for _, name := range names {
		values := h[name]
		count := uint64(len(values)) << 1
		if slices.Contains(appended, name) {
			count |= 1
		}
		dst = appendString(dst, name)
		dst = binary.AppendUvarint(dst, count)
		for _, value := range values {
			dst = appendString(dst, value)
		}
	}
	return dst
}

func appendString(dst []byte, s string) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(s)))
	return append(dst, s...)
}

// Decode reads what Append wrote. The result shares no memory with b.
func Decode(b []byte) (h http.Header, appended []string, err error) {
	if len(b) == 0 {
		return nil, nil, nil
	}
	if b[0] != version {
		return nil, nil, errCorrupt
	}
	d := decoder{rest: string(b[1:])} // one copy; names and values are parts of it
	h = make(http.Header)
	for d.rest != "" && !d.bad {
		name := d.string()
		count := d.uvarint()
		if count>>1 > uint64(len(d.rest)) { // each value takes a byte at least
			return nil, nil, errCorrupt
		}
		values := make([]string, 0, count>>1)
		for range count >> 1 {
			values = append(values, d.string())
		}
		h[name] = values
		if count&1 == 1 {
			appended = append(appended, name)
		}
	}
	if d.bad {
		return nil, nil, errCorrupt
	}
	return h, appended, nil
}

type decoder struct {
	rest string
	bad  bool
}

func (d *decoder) uvarint() uint64 {
	var n uint64
	for i := range min(len(d.rest), binary.MaxVarintLen64) {
		c := d.rest[i]
		n |= uint64(c&0x7f) << (7 * i)
		if c < 0x80 {
			d.rest = d.rest[i+1:]
			return n
		}
	}
	d.bad = true
	return 0
}

func (d *decoder) string() string {
	n := d.uvarint()
	if n > uint64(len(d.rest)) {
		d.bad = true
		return ""
	}
	s := d.rest[:n]
	d.rest = d.rest[n:]
	return s
}
