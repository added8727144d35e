package storetest_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"github.com/seed-2d1e5f61/idempotency"
)

// copyOf shares nothing with resp, unless that is the fault.
func (s *simpleStore) copyOf(resp idempotency.Response) idempotency.Response {
	if !s.has("shares the body") {
		resp.Body = bytes.Clone(resp.Body)
	}
	if !s.has("shares the header") {
		resp.Header = resp.Header.Clone()
	}
	if !s.has("shares Appended") {
		resp.Appended = slices.Clone(resp.Appended)
	}
	return resp
}

// damaged is resp as it comes through a serialization that somebody thought good enough.
func (s *simpleStore) damaged(resp idempotency.Response) idempotency.Response {
	resp = newSimpleStore(noFault).copyOf(resp)
	switch s.fault {
	case "body is a JSON string":
		var text string
		quoted, _ := json.Marshal(string(resp.Body))
		_ = json.Unmarshal(quoted, &text)
		resp.Body = []byte(text)
	case "body is jsonb":
		var document any
		if json.Unmarshal(resp.Body, &document) == nil {
			resp.Body, _ = json.Marshal(document)
		}
	case "body is trimmed":
		resp.Body = bytes.TrimSpace(resp.Body)
	case "body is cut at NUL":
		resp.Body, _, _ = bytes.Cut(resp.Body, []byte{0})
	case "body of 64 KiB at most":
		resp.Body = resp.Body[:min(len(resp.Body), 64<<10)]
	case "header is JSON":
		encoded, _ := json.Marshal(resp.Header)
		resp.Header = nil
		_ = json.Unmarshal(encoded, &resp.Header)
	case "marks are lost":
		resp.Appended = nil
	case "status is 200":
		resp.Status = http.StatusOK
	case "reference is lost":
		resp.Ref = ""
	case "omission is lost":
		resp.Omitted = false
	default:
		resp.Header = s.damagedLines(resp.Header)
	}
	return resp
}

func (s *simpleStore) damagedLines(header http.Header) http.Header {
	damaged := make(http.Header)
	for name, values := range header {
		switch s.fault {
		case "lines are joined":
			damaged[name] = []string{strings.Join(values, ", ")}
		case "lines are split":
			damaged[name] = strings.Split(strings.Join(values, ","), ",")
		case "lines are sorted":
			damaged[name] = slices.Sorted(slices.Values(values))
		case "names are canonical":
			damaged[http.CanonicalHeaderKey(name)] = values
		case "names without values are lost":
			if len(values) > 0 {
				damaged[name] = values
			}
		default:
			damaged[name] = values
		}
	}
	return damaged
}
