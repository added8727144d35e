package idempotency

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"io"
	"maps"
	"mime"
	"mime/multipart"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
)

func boundaryOf(r *http.Request) string {
	_, params, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	return params["boundary"]
}

// multipartSum returns the digest of a multipart body without its boundary: of what
// stands before, between and behind the delimiters. Two bodies of one digest are the
// same but for the name of the boundary, which no parser gives a meaning, because each
// occurrence of it ends up as a delimiter here, or ok is false.
func multipartSum(body []byte, boundary string) (sum [sha256.Size]byte, ok bool) {
	if !validBoundary(boundary) {
		return sum, false
	}
	delimiter := []byte("--" + boundary)
	h := sha256.New()
	for first := true; ; first = false {
		piece, rest, more := bytes.Cut(body, delimiter)
		if !validPiece(piece, first, !more) {
			return sum, false
		}
		var length [8]byte
		binary.BigEndian.PutUint64(length[:], uint64(len(piece)))
		h.Write(length[:])
		h.Write(piece)
		if !more {
			h.Sum(sum[:0])
			return sum, true
		}
		body = rest
	}
}

// validPiece reports whether the delimiters around a piece are lines of their own: the
// first piece is a preamble or nothing, the last one begins with the two hyphens that
// close the body, and any other is a part, with a header (which may be empty) and the
// empty line behind it. RFC 2046 allows white space at the end of a delimiter, which
// nobody sends; it counts as malformed.
func validPiece(piece []byte, first, last bool) bool {
	switch {
	case first && last:
		return false
	case first:
		return len(piece) == 0 || bytes.HasSuffix(piece, []byte("\r\n"))
	case last:
		return string(piece) == "--" || bytes.HasPrefix(piece, []byte("--\r\n"))
	}
	return bytes.HasPrefix(piece, []byte("\r\n")) && bytes.HasSuffix(piece, []byte("\r\n")) &&
		bytes.Contains(piece, []byte("\r\n\r\n"))
}

// validBoundary follows RFC 2046, section 5.1.1.
func validBoundary(b string) bool {
	if len(b) < 1 || len(b) > 70 || b[len(b)-1] == ' ' {
		return false
	}
	for i := range len(b) {
		c := b[i]
		letter := 'a' <= c|0x20 && c|0x20 <= 'z'
		digit := '0' <= c && c <= '9'
		if !letter && !digit && strings.IndexByte("'()+_,-./:=? ", c) < 0 {
			return false
		}
	}
	return true
}

// fieldSet holds the values that some fields have in a request.
type fieldSet struct {
	names  []string // sorted, each once
	values [][][]byte
}

func newFieldSet(names []string) fieldSet {
	return fieldSet{names: names, values: make([][][]byte, len(names))}
}

// has reports whether name is one of the fields, and where it is.
func (f fieldSet) has(name string) (int, bool) { return slices.BinarySearch(f.names, name) }

func (f fieldSet) add(i int, value []byte) { f.values[i] = append(f.values[i], value) }

// empty reports whether no field has a value.
func (f fieldSet) empty() bool {
	return !slices.ContainsFunc(f.values, func(values [][]byte) bool { return len(values) > 0 })
}

// sum counts the values of each name, so that none passes for the next name.
func (f fieldSet) sum() [sha256.Size]byte {
	var buf []byte
	for i, name := range f.names {
		buf = appendFramed(buf, name)
		buf = appendList(buf, f.values[i])
	}
	return sha256.Sum256(buf)
}

func appendList[T string | []byte](dst []byte, list []T) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(len(list)))
	for _, part := range list {
		dst = appendFramed(dst, part)
	}
	return dst
}

func jsonFieldsOf(body []byte, names []string) (fieldSet, bool) {
	doc, ok := parseJSON(body)
	if !ok {
		return fieldSet{}, false
	}
	defer recycle(doc, body)
	fields := newFieldSet(names)
	for i, name := range names {
		if doc.HasVariant(name) {
			return fieldSet{}, false
		}
		if value, ok := doc.Member(name); ok {
			fields.add(i, bytes.Clone(value))
		}
	}
	return fields, true
}

// formFieldsOf reads a form as url.ParseQuery does, but keeps the named fields alone.
// An encoder never leaves a brace as it is: a body that begins with one is JSON under the
// media type that curl -d sets, and reading a form in it would find what is not there.
func formFieldsOf(body []byte, names []string) (fieldSet, bool) {
	if bytes.HasPrefix(bytes.TrimLeft(body, " \t\r\n"), []byte("{")) {
		return fieldSet{}, false
	}
	fields := newFieldSet(names)
	for pair := range strings.SplitSeq(string(body), "&") {
		escapedName, escapedValue, _ := strings.Cut(pair, "=")
		name, nameErr := url.QueryUnescape(escapedName)
		value, valueErr := url.QueryUnescape(escapedValue)
		if nameErr != nil || valueErr != nil || strings.Contains(pair, ";") {
			return fieldSet{}, false
		}
		if i, ok := fields.has(name); ok && pair != "" {
			fields.add(i, []byte(value))
		}
	}
	return fields, true
}

// multipartFieldsOf reads the parts as net/http does, without decoding their content:
// an encoding that a part declares is in the header and counts.
func multipartFieldsOf(body []byte, boundary string, names []string) (fieldSet, bool) {
	if boundary == "" {
		return fieldSet{}, false
	}
	fields := newFieldSet(names)
	reader := multipart.NewReader(bytes.NewReader(body), boundary)
	for {
		part, err := reader.NextRawPart()
		if err == io.EOF {
			return fields, true
		}
		if err != nil {
			return fieldSet{}, false
		}
		i, ok := fields.has(part.FormName())
		if !ok {
			continue
		}
		content, err := io.ReadAll(part)
		if err != nil {
			return fieldSet{}, false
		}
		fields.add(i, append(appendFramed(nil, appendHeader(nil, part.Header)), content...))
	}
}

func appendHeader(dst []byte, h textproto.MIMEHeader) []byte {
	for _, name := range slices.Sorted(maps.Keys(h)) {
		dst = appendFramed(dst, name)
		dst = appendList(dst, h[name])
	}
	return dst
}
