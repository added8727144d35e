package idempotency

import (
	"maps"
	"net/http"
	"net/textproto"
	"slices"
)

// field is a header field: a name and its values, line by line.
type field struct {
	name   string
	values []string
}

// sniff gives the response the Content-Type that net/http would have guessed, so that
// it is recorded: once, from the first bytes, unless the handler has set one, be it nil.
// On a flush net/http decides on what is there, and on nothing it decides for no type.
func (rec *recorder) sniff(flushed bool) {
	if len(rec.body) == 0 && !flushed || !bodyAllowed(rec.status) {
		return
	}
	for _, f := range rec.frozen {
		switch f.name {
		case "Content-Type", "Transfer-Encoding":
			return
		case "Content-Encoding":
			if len(f.values) > 0 && f.values[0] != "" {
				return
			}
		}
	}
	var guess []string
	if len(rec.body) > 0 {
		guess = []string{http.DetectContentType(rec.body)}
	}
	rec.frozen = append(rec.frozen, field{"Content-Type", guess})
}

// response is what a record keeps: the status, the handler's own header fields of those
// in Config.ReplayHeaders, and the body, which stays the recorder's: a store copies it.
func (rec *recorder) response() Response {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	keep := rec.attempt.cfg.ReplayHeaders
	resp := Response{Status: rec.status, Body: rec.body, Omitted: rec.overflown}
	for _, f := range rec.frozen {
		name, values := f.name, f.values
		if !slices.Contains(keep, textproto.CanonicalMIMEHeaderKey(name)) {
			continue
		}
		before, had := rec.outer[name]
		switch {
		case had && slices.Equal(before, values):
			continue // an outer layer's: it stays fresh on a replay
		case len(before) > 0 && len(values) > len(before) && slices.Equal(before, values[:len(before)]):
			values = values[len(before):]
			resp.Appended = append(resp.Appended, name)
		}
		if resp.Header == nil {
			resp.Header = make(http.Header)
		}
		resp.Header[name] = values
	}
	slices.Sort(resp.Appended)
	return resp
}

// setHeader makes dst, a map that others hold, equal to src.
func setHeader(dst, src http.Header) {
	maps.DeleteFunc(dst, func(name string, _ []string) bool {
		_, ok := src[name]
		return !ok
	})
	maps.Copy(dst, src)
}

// bodyAllowed reports whether a response with this status may have a body (RFC 9110,
// section 6.4.1).
func bodyAllowed(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}
