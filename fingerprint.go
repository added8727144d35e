package idempotency

import (
	"crypto/sha256"
	"net/http"
	"strings"
)

// FingerprintBody is the media type and the bytes of the body.
func FingerprintBody(r *http.Request, body []byte) ([]byte, error) {
	mediaType, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	sum := sha256.Sum256(body)
	return append(appendFramed(nil, strings.ToLower(strings.TrimSpace(mediaType))), sum[:]...), nil
}

// fingerprintOf digests what a request is, each part behind its length.
func fingerprintOf(method, path, query string, payload []byte) Fingerprint {
	return sha256.Sum256(appendFramed(appendFramed(appendFramed(appendFramed(nil, method), path), query), payload))
}
