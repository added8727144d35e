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

// requestBody is a request's body, read whole before anything is reserved.
type requestBody struct {
	bytes []byte
}

// readBody reads r.Body to its end, and no further than limit.
func readBody(r *http.Request, limit int64) (*requestBody, *requestError) {
	if r.ContentLength > limit {
		return nil, &requestError{sentinel: ErrBodyTooLarge}
	}
	if r.Body == nil {
		return &requestBody{}, nil
	}
	// Grown to what is announced, but not at once: announcing costs a client nothing.
	buf := bytes.NewBuffer(make([]byte, 0, min(max(r.ContentLength, 0), 64<<10)+bytes.MinRead))
	n, err := buf.ReadFrom(io.LimitReader(r.Body, limit+1))
	switch {
	case err != nil:
		return nil, readFailure(err)
	case n > limit:
		return nil, &requestError{sentinel: ErrBodyTooLarge}
	case readOutside(r, n):
		return nil, &requestError{sentinel: ErrBodyRead, status: http.StatusInternalServerError,
			cause: errors.New("a layer outside of the middleware has read the body")}
	}
	return &requestBody{bytes: buf.Bytes()}, nil
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
		failure.status = http.StatusInternalServerError // an outer layer has closed it
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

func (b *requestBody) reader() io.ReadCloser {
	if len(b.bytes) == 0 {
		return http.NoBody
	}
	return &bodyReader{rest: b.bytes}
}

// bodyReader is what a handler reads the body from. It may be read by a goroutine that
// outlives the handler: that one gets an error.
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
