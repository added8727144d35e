package idempotency

import (
	"context"
	"net/http"
	"sync"
)

// runUnprotected calls the handler without a claim. storeErr says why, unless the client
// sent no key.
func (x *exchange) runUnprotected(storeErr error) {
	w := &heldWriter{ResponseWriter: x.w}
	ctx := context.WithValue(x.r.Context(), heldKey, w)
	request, body := x.r.WithContext(ctx), new(bodyReader)
	if x.body != nil {
		request = x.copyRequest(ctx, body)
	}
	defer func() {
		x.handBack(request)
		body.Close()
		w.close()
		x.observe(Event{Outcome: Unprotected, Err: storeErr})
	}()
	x.next.ServeHTTP(w, request)
}

// heldWriter is what a handler that runs unprotected writes to. It passes everything on,
// except while a transaction of [PostgresStore.InTx] is open: what is written then is sent
// when that is committed, and taken back when it is not. Nobody is told of a success that
// was rolled back, be there a key or none.
type heldWriter struct {
	http.ResponseWriter

	mu      sync.Mutex
	held    *heldResponse // nil: no transaction
	started bool          // the client has the status
	closed  bool          // the handler has returned
}

// heldResponse is what was written during a transaction.
type heldResponse struct {
	before http.Header // as the transaction found it
	status int         // 0: none yet
	header http.Header // with the status
	body   []byte
}

func (h *heldResponse) setStatus(status int, header http.Header) {
	if h.status == 0 {
		h.status, h.header = status, header.Clone()
	}
}

// hold keeps back what is written from now on, until release. It reports false if there is
// nothing to hold: somebody does already, or the handler has returned.
func (w *heldWriter) hold() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.held != nil || w.closed {
		return false
	}
	w.held = &heldResponse{before: w.Header().Clone()}
	return true
}

// release ends hold, and sends what was kept back or takes it back.
func (w *heldWriter) release(send bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	held := w.held
	w.held = nil
	switch {
	case w.closed:
	case !send:
		setHeader(w.Header(), held.before)
	default:
		if held.status != 0 && !w.started {
			// What has been set since, such as trailers, stays.
			writeHeaderWith(w.ResponseWriter, held.header, held.status)
			w.started = true
		}
		if len(held.body) > 0 {
			w.ResponseWriter.Write(held.body)
		}
	}
}

// close refuses later writes: what a goroutine writes that outlives the handler would go
// to a connection that serves the next request by then.
func (w *heldWriter) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
}

func (w *heldWriter) WriteHeader(status int) {
	mustBeStatus(status)
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.closed:
	case w.held != nil && isFinal(status):
		w.held.setStatus(status, w.Header())
	default:
		w.started = w.started || isFinal(status)
		w.ResponseWriter.WriteHeader(status)
	}
}

func (w *heldWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return 0, errLateWrite
	}
	if w.held != nil {
		w.held.setStatus(http.StatusOK, w.Header())
		w.held.body = append(w.held.body, p...)
		return len(p), nil
	}
	w.started = true
	return w.ResponseWriter.Write(p)
}

// FlushError does nothing while the response is held.
func (w *heldWriter) FlushError() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return errLateWrite
	}
	if w.held != nil {
		w.held.setStatus(http.StatusOK, w.Header())
		return nil
	}
	w.started = true
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// Flush is FlushError for who asks for an [http.Flusher].
func (w *heldWriter) Flush() { _ = w.FlushError() }

// Unwrap lets a ResponseController reach the real writer.
func (w *heldWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
