package idempotency

import (
	"crypto/sha256"
	"encoding/binary"
	"net/http"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/seed-2d1e5f61/idempotency/internal/canonjson"
)

// A fingerprint is kept for as long as its record, over upgrades of this package too.
// So none of what goes into one may ever change: the order and framing of the parts,
// these names, the canonical form of JSON, what falls back to the bytes.
const (
	formBytes           = "bytes"
	formMultipart       = "multipart"
	formJSON            = "json"
	formJSONFields      = "json fields"
	formFields          = "form fields"
	formMultipartFields = "multipart fields"
)

const (
	mediaForm      = "application/x-www-form-urlencoded"
	mediaMultipart = "multipart/form-data"
)

// fingerprintOf is what a store keeps: the digest of all that a retry must have in
// common with the first request. payload is what [Config.Fingerprint] gave.
func fingerprintOf(method, escapedPath, rawQuery string, payload []byte) (fp Fingerprint) {
	head := make([]byte, 0, 512) // on the stack, unless the path is longer
	head = appendFramed(head, method)
	head = appendFramed(head, escapedPath)
	head = appendFramed(head, rawQuery)
	head = binary.BigEndian.AppendUint64(head, uint64(len(payload)))

	h := sha256.New()
	h.Write(head)
	h.Write(payload)
	h.Sum(fp[:0])
	return fp
}

// payload is what the functions of this package give: the media type, how the body was
// read, and the digest of what was read. The digest stands for a body of any size, and
// the form keeps a body that was taken as it is apart from one that was understood.
func payload(media, form string, sum [sha256.Size]byte) []byte {
	return appendPayload(make([]byte, 0, 8+len(media)+8+len(form)+len(sum)), media, form, sum)
}

func appendPayload(dst []byte, media, form string, sum [sha256.Size]byte) []byte {
	dst = appendFramed(dst, media)
	dst = appendFramed(dst, form)
	return append(dst, sum[:]...)
}

// FingerprintBody is the default of [Config.Fingerprint]: the media type (without its
// parameters, in lower case) and the bytes of the body.
//
// A multipart/form-data body counts by its parts, each with the header and content that
// was sent, because clients make a new boundary for each try. If it has no valid
// boundary, is not well formed, or has the boundary inside a part, its bytes count.
//
// It never returns an error, keeps no reference to body, and is safe for concurrent use.
func FingerprintBody(r *http.Request, body []byte) ([]byte, error) {
	return appendBodyPayload(make([]byte, 0, 128), r, body), nil
}

func appendBodyPayload(dst []byte, r *http.Request, body []byte) []byte {
	media := mediaType(r)
	if media == mediaMultipart {
		if sum, ok := multipartSum(body, boundaryOf(r)); ok {
			return appendPayload(dst, media, formMultipart, sum)
		}
	}
	return appendPayload(dst, media, formBytes, sha256.Sum256(body))
}

// FingerprintJSON is a [Config.Fingerprint] for clients that write the same document
// anew for each try. JSON documents that differ in white space, in the order of members
// or in the escapes of strings are the same; so RFC 8785 has it, except that a number
// counts by its text: 1.0 is not 1, and no digit is lost. The body is read as JSON
// whatever its media type, which counts as in FingerprintBody.
//
// Whatever might be understood in two ways is left to [FingerprintBody]: a body that is
// not valid JSON (RFC 8259) in UTF-8, that repeats a name within an object, has half a
// surrogate pair as an escape, or is nested deeper than 1000 levels.
//
// It never returns an error, keeps no reference to body, and is safe for concurrent use.
func FingerprintJSON(r *http.Request, body []byte) ([]byte, error) {
	doc, ok := parseJSON(body)
	if !ok {
		return FingerprintBody(r, body)
	}
	defer recycle(doc, body)
	return payload(mediaType(r), formJSON, sha256.Sum256(doc.Canonical())), nil
}

// FingerprintFields returns a [Config.Fingerprint] for requests of which a part changes
// from try to try, such as a time of sending. Only the fields named count, and the media
// type: of a JSON object the members at the top, as [FingerprintJSON] compares them; of
// an application/x-www-form-urlencoded body all values of the field in their order; of a
// multipart/form-data body all parts of that name, header and content. A field that is
// absent differs from one that is null or empty. The order of names and repeated names
// have no meaning.
//
// What cannot be told from these fields counts as in [FingerprintBody]: a body of
// another kind or not well formed; one that has none of the fields; and a JSON object
// with a member whose name differs from a field's by case alone, because many decoders,
// encoding/json among them, take it for that field.
//
// FingerprintFields panics if there are no names, since all bodies would be equal. The
// function it returns never returns an error, keeps no reference to body, and is safe
// for concurrent use.
func FingerprintFields(names ...string) func(*http.Request, []byte) ([]byte, error) {
	if len(names) == 0 {
		panic("idempotency: FingerprintFields: no names")
	}
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	return func(r *http.Request, body []byte) ([]byte, error) {
		var (
			form   string
			fields fieldSet
			ok     bool
		)
		media := mediaType(r)
		switch media {
		case mediaForm:
			form = formFields
			fields, ok = formFieldsOf(body, names)
		case mediaMultipart:
			form = formMultipartFields
			fields, ok = multipartFieldsOf(body, boundaryOf(r), names)
		default:
			form = formJSONFields
			fields, ok = jsonFieldsOf(body, names)
		}
		if !ok || fields.empty() {
			return FingerprintBody(r, body)
		}
		return payload(media, form, fields.sum()), nil
	}
}

// mediaType returns the request's media type as mime.ParseMediaType does, with less
// work. A value that is no media type is cut and trimmed in the same way; one beyond
// ASCII keeps its bytes, as Unicode's lower case would make different ones equal.
func mediaType(r *http.Request) string {
	var media string
	if lines := r.Header["Content-Type"]; len(lines) > 0 {
		media, _, _ = strings.Cut(lines[0], ";")
	}
	media = strings.Trim(media, " \t")
	for i := range len(media) {
		if media[i] >= utf8.RuneSelf {
			return media
		}
	}
	return strings.ToLower(media)
}

// documents are reused because a parsed document never leaves this file.
var documents = sync.Pool{New: func() any { return new(canonjson.Document) }}

// maxRecycled is the longest body whose document is kept for the next request: a few
// large requests should not hold memory for long.
const maxRecycled = 256 << 10

// parseJSON returns the document in body, or false if it is none. The caller recycles it.
func parseJSON(body []byte) (*canonjson.Document, bool) {
	doc := documents.Get().(*canonjson.Document)
	if !doc.Parse(body) {
		recycle(doc, body)
		return nil, false
	}
	return doc, true
}

func recycle(doc *canonjson.Document, body []byte) {
	if len(body) <= maxRecycled {
		documents.Put(doc)
	}
}
