package idempotency

import (
	"maps"
	"net/http"
	"net/textproto"
	"slices"
	"strconv"
	"sync"

	"github.com/seed-2d1e5f61/idempotency/internal/headercode"
)

// sniff gives the response the Content-Type that net/http would have guessed, so that
// it is recorded: once, from the first bytes, unless the handler has set one, be it nil.
// On a flush net/http decides on what is there, and on nothing it decides for no type.
// So it does on an encoded body: recorded as no type, a replay will not guess either.
func (rec *recorder) sniff(flushed bool) {
	if len(rec.body) == 0 && !flushed || !bodyAllowed(rec.status) {
		return
	}
	encoded := false
	for _, f := range rec.frozen {
		switch f.Name {
		case "Content-Type":
			return
		case "Transfer-Encoding": // which HTTP/2 does not have
			encoded = encoded || rec.attempt.asked.ProtoMajor == 1
		case "Content-Encoding":
			encoded = encoded || len(f.Values) > 0 && f.Values[0] != ""
		}
	}
	var guess []string
	if len(rec.body) > 0 && !encoded {
		guess = []string{http.DetectContentType(rec.body)}
	}
	rec.frozen = append(rec.frozen, headercode.Field{Name: "Content-Type", Values: guess})
}

// response is what a record keeps: the status, the handler's own header fields of those
// in Config.ReplayHeaders, and the body, which stays the recorder's: a store copies it.
func (rec *recorder) response() Response {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	resp := Response{Status: rec.status, Body: rec.body, Omitted: rec.overflown}
	if !rec.keptUsed && rec.space != nil {
		rec.keptUsed, resp.fields = true, rec.space.kept[:0]
	}
	for _, f := range rec.frozen {
		if !slices.Contains(rec.attempt.cfg.ReplayHeaders, textproto.CanonicalMIMEHeaderKey(f.Name)) {
			continue
		}
		before, had := rec.outer[f.Name]
		switch {
		case had && slices.Equal(before, f.Values):
			continue // an outer layer's: it stays fresh on a replay
		case len(before) > 0 && len(f.Values) > len(before) && slices.Equal(before, f.Values[:len(before)]):
			f.Values, f.Appended = f.Values[len(before):], true
		}
		resp.fields = append(resp.fields, f)
	}
	return resp
}

// fieldSpace is room for the fields of a response. It is pooled, because only a recorder
// and the stores of this package see it, and these keep no field beyond a call.
type fieldSpace struct {
	frozen [16]headercode.Field
	kept   [8]headercode.Field // for the first Response alone
}

var fieldSpaces = sync.Pool{New: func() any { return new(fieldSpace) }}

// recycle gives the fields' room to a later response when the run is over: not if a
// goroutine that the handler left behind may be in a store with it.
func (rec *recorder) recycle() {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	if rec.space == nil || rec.overflown || rec.holding {
		return
	}
	*rec.space = fieldSpace{}
	fieldSpaces.Put(rec.space)
	rec.space, rec.frozen = nil, nil
}

// forStore returns r as s expects it: a store of this package takes the fields as they
// are, any other finds them in Header and Appended.
func (r Response) forStore(s Store) Response {
	switch s.(type) {
	case *MemoryStore, *PostgresStore:
		return r
	}
	if len(r.fields) > 0 {
		r.Header = make(http.Header, len(r.fields))
	}
	for _, f := range r.fields {
		r.Header[f.Name] = f.Values
		if f.Appended {
			r.Appended = append(r.Appended, f.Name)
		}
	}
	slices.Sort(r.Appended)
	r.fields = nil
	return r
}

// appendHeader appends the encoding of the response's header to dst.
func (r *Response) appendHeader(dst []byte) []byte {
	if r.fields != nil {
		return headercode.AppendFields(dst, r.fields)
	}
	return headercode.Append(dst, r.Header, r.Appended)
}

// setHeader makes dst, a map that others hold, equal to src.
func setHeader(dst, src http.Header) {
	maps.DeleteFunc(dst, func(name string, _ []string) bool {
		_, ok := src[name]
		return !ok
	})
	maps.Copy(dst, src)
}

// writeHeaderWith sends status with header in the place of w's own, which is as it was
// afterwards.
func writeHeaderWith(w http.ResponseWriter, header http.Header, status int) {
	own := maps.Clone(w.Header())
	setHeader(w.Header(), header)
	w.WriteHeader(status)
	setHeader(w.Header(), own)
}

// bodyAllowed reports whether a response with this status may have a body (RFC 9110,
// section 6.4.1).
func bodyAllowed(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}

// mustBeStatus panics at what net/http would panic at: without it, the mistake would
// surface when the response is sent or replayed.
func mustBeStatus(status int) {
	if status < 100 || status > 999 {
		panic("invalid WriteHeader code " + strconv.Itoa(status))
	}
}

// isFinal reports whether a response's status is one that none follows.
func isFinal(status int) bool { return status >= 200 || status == http.StatusSwitchingProtocols }
