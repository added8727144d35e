package idempotency

import (
	"net/http"
	"slices"
)

// replay answers from the record. The handler is not called.
func (x *exchange) replay(rec Record) {
	defer x.observe(Event{Outcome: Replayed, Status: rec.Response.Status, Attempt: rec.Attempt})
	resp := rec.Response
	h := x.w.Header()
	for name, values := range resp.Header {
		if slices.Contains(resp.Appended, name) {
			values = slices.Concat(h[name], values) // the outer layer may share its slice
		}
		h[name] = values
	}
	h[http.CanonicalHeaderKey(x.m.cfg.ReplayedHeader)] = []string{"true"}

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
