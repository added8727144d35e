// Package headercode writes HTTP header fields as bytes and reads them back exactly:
// values line by line, names without values included. Stores use it because JSON and
// the wire form of HTTP both lose something.
package headercode

import (
	"encoding/binary"
	"errors"
	"net/http"
	"slices"
	"strings"
)

// version is the first byte of every encoding, so that a later form can be told apart.
const version = 1

var errCorrupt = errors.New("idempotency: corrupt header encoding")

// Field is one header field: a name, its values line by line, and whether the name is
// marked.
type Field struct {
	Name     string
	Values   []string
	Appended bool
}

// Append appends the encoding of h to dst. The names in appended are marked, and
// Decode gives them back. Equal headers have equal encodings.
func Append(dst []byte, h http.Header, appended []string) []byte {
	var space [16]Field // keeps a small header's fields off the heap
	fields := space[:0]
	for name, values := range h {
		fields = append(fields, Field{name, values, slices.Contains(appended, name)})
	}
	return AppendFields(dst, fields)
}

// AppendFields is Append for fields that are in no map. It sorts them by name; no name
// may occur twice.
//
// After the version come the number of names and the number of all values, so that
// Decode can make room for everything at once.
func AppendFields(dst []byte, fields []Field) []byte {
	if len(fields) == 0 {
		return dst
	}
	slices.SortFunc(fields, func(a, b Field) int { return strings.Compare(a.Name, b.Name) })
	total := 0
	for _, f := range fields {
		total += len(f.Values)
	}

	dst = append(dst, version)
	dst = binary.AppendUvarint(dst, uint64(len(fields)))
	dst = binary.AppendUvarint(dst, uint64(total))
	for _, f := range fields {
		count := uint64(len(f.Values)) << 1
		if f.Appended {
			count |= 1
		}
		dst = appendString(dst, f.Name)
		dst = binary.AppendUvarint(dst, count)
		for _, value := range f.Values {
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
	return DecodeString(string(b))
}

// DecodeString is Decode without a copy: the names and values are parts of s.
func DecodeString(s string) (h http.Header, appended []string, err error) {
	if s == "" {
		return nil, nil, nil
	}
	names := 0
	err = Walk(s, func(f Field) {
		if h == nil {
			h = make(http.Header)
		}
		names++
		h[f.Name] = f.Values
		if f.Appended {
			appended = append(appended, f.Name)
		}
	})
	if err != nil || len(h) != names {
		return nil, nil, errCorrupt
	}
	return h, appended, nil
}

// Walk calls visit with each field of an encoding, in the order of the names, which are
// parts of s, as are the values. It fails if s is corrupt, perhaps after some calls.
func Walk(s string, visit func(Field)) error {
	if s == "" {
		return nil
	}
	if s[0] != version {
		return errCorrupt
	}
	d := decoder{rest: s[1:]}
	names, total := d.uvarint(), d.uvarint()
	// A name takes two bytes at least and a value one: corrupt counts claim no memory.
	if names > uint64(len(d.rest))/2 || total > uint64(len(d.rest)) {
		return errCorrupt
	}
	values := make([]string, 0, total) // one piece of memory for the values of all names
	for range names {
		name, count, first := d.string(), d.uvarint(), len(values)
		if count>>1 > total-uint64(first) {
			return errCorrupt
		}
		for range count >> 1 {
			values = append(values, d.string())
		}
		// Capped, so that appending to one name's values leaves the next name's alone.
		visit(Field{name, values[first:len(values):len(values)], count&1 == 1})
	}
	if d.bad || d.rest != "" || uint64(len(values)) != total {
		return errCorrupt
	}
	return nil
}

// decoder reads from the front of rest. Once a read fails bad stays true.
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
