package idempotency

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
)

// readBody reads r.Body to its end, and no further than limit, into buf.
func readBody(r *http.Request, limit int64, buf *bytes.Buffer) *requestError {
	if r.ContentLength > limit {
		return &requestError{sentinel: ErrBodyTooLarge}
	}
	if r.Body == nil {
		return nil
	}
	// Room for what is announced, but not for all of it at once: announcing costs a
	// client nothing.
	buf.Grow(int(min(max(r.ContentLength, 0), 64<<10)) + bytes.MinRead)
	n, err := readFrom(buf, r.Body, limit)
	switch {
	case err != nil:
		return readFailure(err)
	case n > limit:
		return &requestError{sentinel: ErrBodyTooLarge}
	case readOutside(r, n):
		return &requestError{sentinel: ErrBodyRead, status: http.StatusInternalServerError, detail: readOutsideDetail,
			cause: errors.New("a layer outside of the middleware has read the body")}
	}
	return nil
}

// readFrom reads until the end of body, or until more than limit has come. Unlike
// io.LimitReader with buf.ReadFrom it needs no memory of its own.
func readFrom(buf *bytes.Buffer, body io.Reader, limit int64) (n int64, err error) {
	for n <= limit {
		buf.Grow(bytes.MinRead)
		space := buf.AvailableBuffer()
		read, err := body.Read(space[:cap(space)])
		buf.Write(space[:read])
		n += int64(read)
		if err == io.EOF {
			return n, nil
		}
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// readFailure says whose fault it is that a body could not be read.
func readFailure(err error) *requestError {
	failure := &requestError{sentinel: ErrBodyRead, cause: err}
	var tooLarge *http.MaxBytesError
	var netErr net.Error
	switch {
	case errors.As(err, &tooLarge): // an outer layer's limit
		failure.sentinel = ErrBodyTooLarge
	case errors.Is(err, http.ErrBodyReadAfterClose):
		// An outer layer has closed it.
		failure.status, failure.detail = http.StatusInternalServerError, readOutsideDetail
	case errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &netErr) && netErr.Timeout():
		failure.status = http.StatusRequestTimeout
	}
	return failure
}

// readOutside reports whether an outer layer has read from the body, of which n bytes
// were left: its fingerprint would stand for requests that differ. The server itself
// reports a body that a client cut short, so a clean end before the announced length is
// an outer layer's doing. Two cases cannot be told from an honest request: a body whose
// length was not announced, unless it went into a form, and one that an outer layer
// decompresses to less than its length.
func readOutside(r *http.Request, n int64) bool {
	switch {
	case r.ContentLength > 0 && n == 0:
		return true
	case r.ContentLength > n:
		return r.Header.Get("Content-Encoding") == ""
	default:
		return n == 0 && (r.MultipartForm != nil || len(r.PostForm) > 0)
	}
}

// bodyReader is what a handler reads the body from. It may be read by a goroutine that
// outlives the handler: that one gets an error, never another request's bytes. It gives
// copies only, so no WriterTo.
type bodyReader struct {
	mu     sync.Mutex
	rest   []byte
	closed bool
}

func (b *bodyReader) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return 0, http.ErrBodyReadAfterClose
	}
	if len(b.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(p, b.rest)
	b.rest = b.rest[n:]
	return n, nil
}

func (b *bodyReader) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed, b.rest = true, nil
	return nil
}

// buffers hold request bodies. Only the middleware itself and built-in fingerprint
// functions see such a buffer; a handler gets copies through a bodyReader. Response
// bodies are not pooled: a store, or an outer ResponseWriter, is handed the slice.
var buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// maxPooled keeps a few long bodies from occupying memory for ever.
const maxPooled = 64 << 10

func putBuffer(buf *bytes.Buffer) {
	if buf.Cap() <= maxPooled {
		buf.Reset()
		buffers.Put(buf)
	}
}
