package idempotency

import (
	"cmp"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-2d1e5f61/idempotency/internal/headercode"
)

var errLateWrite = errors.New("idempotency: response written after the handler returned")

// recorder is the ResponseWriter of a running handler. It keeps the whole response
// back, so that the record is durable before the client sees a byte.
//
// It has no Unwrap and no Hijack, since both would go around the buffer.
type recorder struct {
	w       http.ResponseWriter
	attempt *Attempt
	outer   http.Header // what outer layers have set

	done atomic.Bool // the handler has returned

	// mu is held while a streamed response is written to the client: it is this
	// response's alone, and keeps a late write off a connection that serves the next
	// request by then.
	mu        sync.Mutex
	header    http.Header        // what the handler sees and changes
	frozen    []headercode.Field // the header as it will be sent, once the status is set
	status    int                // 0 until the final status is set
	length    int64              // the Content-Length that the handler declared, or -1
	body      []byte
	overflown bool  // the body has passed MaxResponseBytes, and the record was tried
	streaming bool  // the record is written, the response under way
	holding   bool  // a transaction must see the response whole: no overflow yet
	keptUsed  bool  // space.kept is a Response's, and a store may be at work on it still
	sealed    error // non-nil: the response is final, and this is what later writes get

	// Room for a usual response, so that keeping it needs no memory of its own. What
	// outlives the run, since an outer ResponseWriter is given it, is part of it.
	space      *fieldSpace // nil before the status is set and after recycle
	bodySpace  [256]byte
	valueSpace [8]string
}

func (rec *recorder) init(w http.ResponseWriter, a *Attempt) {
	rec.w, rec.attempt = w, a
	rec.outer = w.Header()
	if len(rec.outer) > 0 {
		rec.header = rec.outer.Clone()
	} else {
		rec.header = make(http.Header)
	}
}

// Header returns the handler's own header map. It starts as a copy of what outer layers
// have set.
func (rec *recorder) Header() http.Header { return rec.header }

// WriteHeader sets the status. The first final one wins; a 1xx goes to the client at
// once and is not recorded.
func (rec *recorder) WriteHeader(status int) {
	mustBeStatus(status)
	rec.mu.Lock()
	defer rec.mu.Unlock()
	if rec.status != 0 || rec.sealed != nil {
		return
	}
	if !isFinal(status) {
		// The handler's fields are taken out again for the final response.
		writeHeaderWith(rec.w, rec.header, status)
		return
	}
	rec.setStatus(status)
}

// setStatus freezes status and header: later changes of the header map are not sent,
// as with any ResponseWriter.
func (rec *recorder) setStatus(status int) {
	rec.status = status
	rec.length = -1
	if declared := rec.header["Content-Length"]; len(declared) > 0 && declared[0] != "" {
		n, err := strconv.ParseInt(strings.TrimSpace(declared[0]), 10, 64)
		if err == nil && n >= 0 {
			rec.length = n
		} else {
			rec.header.Del("Content-Length") // net/http would not send it either
		}
	}
	rec.space = fieldSpaces.Get().(*fieldSpace)
	fields, values := rec.space.frozen[:0], rec.valueSpace[:0]
	for name, lines := range rec.header {
		first := len(values)
		values = append(values, lines...)
		fields = append(fields, headercode.Field{Name: name, Values: values[first:len(values):len(values)]})
	}
	rec.frozen = fields
}

// Write keeps p. Once a response is being streamed, it sends p.
func (rec *recorder) Write(p []byte) (int, error) { return write(rec, p) }

// WriteString is Write without a copy.
func (rec *recorder) WriteString(s string) (int, error) { return write(rec, s) }

func write[T string | []byte](rec *recorder, p T) (int, error) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	if rec.sealed != nil {
		return 0, rec.sealed
	}
	if rec.status == 0 {
		rec.setStatus(http.StatusOK)
	}
	if len(p) == 0 {
		return 0, nil
	}
	if !bodyAllowed(rec.status) {
		return 0, http.ErrBodyNotAllowed
	}
	if rec.streaming {
		return rec.w.Write([]byte(p))
	}
	if rec.length >= 0 && int64(len(rec.body)+len(p)) > rec.length {
		rec.length = 0 // a shorter write must not follow: the body would have a hole
		return 0, http.ErrContentLength
	}
	if rec.body == nil {
		rec.body = rec.bodySpace[:0]
	}
	rec.body = append(rec.body, p...)
	if int64(len(rec.body)) > rec.attempt.cfg.MaxResponseBytes && !rec.holding && !rec.overflown {
		rec.stream()
	}
	return len(p), nil
}

// stream has the record written and starts to send the response. Called with mu held.
func (rec *recorder) stream() {
	rec.overflown = true
	rec.sniff(false)
	rec.recordEarly()
	if rec.sealed != nil { // the handler returned meanwhile
		return
	}
	rec.streaming = true
	rec.outer = maps.Clone(rec.outer) // send changes the map; the record may be tried again
	rec.send()
	rec.body = nil
}

// recordEarly is called with mu held, which it frees for as long as the store is at work.
// Drain waits for it by itself: in a goroutine it may outlive the handler.
func (rec *recorder) recordEarly() {
	running := &rec.attempt.life.running
	running.enter()
	defer running.leave()
	rec.mu.Unlock()
	defer rec.mu.Lock() // also if Config.Keep or the store panics
	rec.attempt.recordEarly()
}

// FlushError freezes status and header, and returns nil: what is kept back stays so
// until it is recorded. A response that is being streamed is flushed.
func (rec *recorder) FlushError() error {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	if rec.sealed != nil {
		return rec.sealed
	}
	if rec.streaming {
		return http.NewResponseController(rec.w).Flush()
	}
	if rec.status == 0 {
		rec.setStatus(http.StatusOK)
	}
	rec.sniff(true)
	return nil
}

// Flush is FlushError for who asks for an [http.Flusher].
func (rec *recorder) Flush() { _ = rec.FlushError() }

// SetWriteDeadline applies to the connection, and so to the response when it is sent.
func (rec *recorder) SetWriteDeadline(deadline time.Time) error {
	if rec.done.Load() {
		return errLateWrite // the connection may serve another request by now
	}
	return http.NewResponseController(rec.w).SetWriteDeadline(deadline)
}

// SetReadDeadline does nothing: the body has been read already, and a deadline on the
// connection would only make the server think that its client has left.
func (rec *recorder) SetReadDeadline(time.Time) error { return nil }

// EnableFullDuplex is passed on. The body has been read, so it changes nothing for the
// handler.
func (rec *recorder) EnableFullDuplex() error {
	if rec.done.Load() {
		return errLateWrite
	}
	return http.NewResponseController(rec.w).EnableFullDuplex()
}

// send gives the whole response to the client.
func (rec *recorder) send() {
	h := rec.w.Header()
	maps.DeleteFunc(h, func(name string, _ []string) bool {
		return !slices.ContainsFunc(rec.frozen, func(f headercode.Field) bool { return f.Name == name })
	})
	for _, f := range rec.frozen {
		h[f.Name] = f.Values
	}
	rec.w.WriteHeader(rec.status)
	if len(rec.body) > 0 {
		rec.w.Write(rec.body) // a client that is gone comes back for the replay
	}
}

// finish makes the response whole when the handler has returned. Later writes are
// refused.
func (rec *recorder) finish() {
	rec.done.Store(true)
	rec.mu.Lock()
	defer rec.mu.Unlock()
	if rec.status == 0 {
		rec.setStatus(http.StatusOK)
	}
	rec.sniff(false)
	rec.end()
}

// abort refuses later writes after a handler that did not return.
func (rec *recorder) abort() {
	rec.done.Store(true)
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.end()
}

// end is called with mu held. From here on the real header map is changed without mu, by
// send and by outer layers, while a goroutine's early record or transaction may still
// compare with it.
func (rec *recorder) end() {
	rec.sealed = cmp.Or(rec.sealed, errLateWrite)
	if rec.overflown || rec.holding {
		rec.outer = maps.Clone(rec.outer)
	}
}

// whole makes what has been written so far the whole response, and reports whether there
// is one.
func (rec *recorder) whole() bool {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	if rec.status == 0 {
		return false
	}
	rec.sniff(false)
	return true
}

// started reports whether the response is being sent, and cannot be taken back.
func (rec *recorder) started() bool {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	return rec.overflown
}

// recorderMark is a state that a recorder can go back to.
type recorderMark struct {
	header http.Header
	frozen []headercode.Field
	status int
	length int64
	body   int
}

// hold keeps the whole response back, however long, until unhold. It fails if the
// response is being sent already, and cannot be taken back, or the handler has returned.
func (rec *recorder) hold() (mark recorderMark, ok bool) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	if rec.overflown || rec.sealed != nil {
		return mark, false
	}
	rec.holding = true
	return recorderMark{rec.header.Clone(), slices.Clone(rec.frozen), rec.status, rec.length, len(rec.body)}, true
}

// unhold ends hold, and with back makes the response what it was.
func (rec *recorder) unhold(mark recorderMark, back bool) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.holding = false
	if back && rec.sealed == nil { // sealed: a goroutine's transaction has outlived the handler
		setHeader(rec.header, mark.header)
		rec.frozen, rec.status, rec.length = mark.frozen, mark.status, mark.length
		rec.body = rec.body[:mark.body]
	}
}

// seal makes the response final: later writes get err.
func (rec *recorder) seal(err error) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.sealed = err
}
