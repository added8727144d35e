package idempotency

import (
	"cmp"
	"net/http"
	"slices"

	"github.com/seed-2d1e5f61/idempotency/internal/headercode"
)

// replay answers from the record. The handler is not called.
func (x *exchange) replay(rec Record) {
	resp := x.restore(rec)
	resp.Status = cmp.Or(resp.Status, http.StatusOK) // a resolved claim's may be left out
	defer x.observe(Event{Outcome: Replayed, Status: resp.Status, Attempt: rec.Attempt})
	h := x.w.Header()
	h[x.m.cfg.ReplayedHeader] = []string{"true"}

	if resp.Ref != "" && x.m.cfg.Rebuild != nil {
		x.rebuild(resp)
		return
	}
	if resp.Omitted || resp.Ref != "" {
		h.Set(omittedHeader, "omitted")
		h.Del("Content-Type")
		h.Del("Content-Encoding")
	}
	x.w.WriteHeader(resp.Status)
	if len(resp.Body) > 0 {
		x.w.Write(resp.Body)
	}
}

// restore gives the response the recorded header. Status, body and ref are returned.
func (x *exchange) restore(rec Record) Response {
	h := x.w.Header()
	set := func(f headercode.Field) {
		if f.Appended {
			f.Values = slices.Concat(h[f.Name], f.Values) // the outer layer may share its slice
		}
		h[f.Name] = f.Values
	}
	if rec.packed != "" {
		resp, header := splitOutcome(rec.packed)
		_ = headercode.Walk(header, set) // what is in memory is as it was written
		return resp
	}
	resp := rec.Response
	for name, values := range resp.Header {
		set(headercode.Field{Name: name, Values: values, Appended: slices.Contains(resp.Appended, name)})
	}
	return resp
}

// rebuild lets Config.Rebuild write the body that the record holds a ref to.
func (x *exchange) rebuild(resp Response) {
	w, body := &rebuiltWriter{ResponseWriter: x.w, status: resp.Status}, new(bodyReader)
	request := x.copyRequest(x.r.Context(), body)
	defer func() {
		x.handBack(request)
		body.Close()
	}()
	x.m.cfg.Rebuild(w, request, resp.Ref)
	w.commit()
}

// rebuiltWriter sends the recorded status if Config.Rebuild writes none.
type rebuiltWriter struct {
	http.ResponseWriter
	status int
	wrote  bool
}

func (w *rebuiltWriter) commit() {
	if !w.wrote {
		w.WriteHeader(w.status)
	}
}

func (w *rebuiltWriter) WriteHeader(status int) {
	w.wrote = w.wrote || status >= 200
	w.ResponseWriter.WriteHeader(status)
}

func (w *rebuiltWriter) Write(p []byte) (int, error) {
	w.commit()
	return w.ResponseWriter.Write(p)
}

// FlushError sends the status before it flushes.
func (w *rebuiltWriter) FlushError() error {
	w.commit()
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// Flush is FlushError for who asks for an [http.Flusher].
func (w *rebuiltWriter) Flush() { _ = w.FlushError() }

// Unwrap lets a ResponseController reach the real writer: a replay is not buffered.
func (w *rebuiltWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
