package idempotency

import (
	"fmt"
	"strings"
	"testing"
)

// benchOrder is JSON of about size bytes whose members are out of order.
func benchOrder(size int) string {
	var b strings.Builder
	b.WriteString(`{"order_id":"o-1","currency":"eur","items":[`)
	for i := 0; i == 0 || b.Len() < size-80; i++ {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"sku":"AB-%d","quantity":2,"price":12.50,"note":"f\u00fcr \"Sie\""}`, i)
	}
	return b.String() + `]}`
}

func BenchmarkFingerprint(b *testing.B) {
	for _, size := range []struct {
		name  string
		bytes int
	}{{"200B", 200}, {"100KB", 100_000}} {
		order := benchOrder(size.bytes)
		for _, c := range []struct {
			name, contentType, body string
			f                       fingerprintFunc
		}{
			{"body", jsonType, order, FingerprintBody},
			{"multipart", multipartType + "x", form("x", textPart("a", order)), FingerprintBody},
			{"json", jsonType, order, FingerprintJSON},
			{"fields", jsonType, order, FingerprintFields("order_id", "items")},
		} {
			b.Run(c.name+"/"+size.name, func(b *testing.B) {
				r, body := requestOf(c.contentType), []byte(c.body)
				b.SetBytes(int64(len(body)))
				b.ReportAllocs()
				for b.Loop() {
					payload, _ := c.f(r, body)
					fingerprintOf("POST", "/v1/charges", "", payload)
				}
			})
		}
	}
}
