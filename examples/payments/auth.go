package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strings"
)

type tenantKey struct{}

// tenantOf returns the tenant that authenticate found.
func tenantOf(ctx context.Context) string {
	tenant, _ := ctx.Value(tenantKey{}).(string)
	return tenant
}

// authenticate turns away requests without an API key, and tells the layers inside whose
// request it is. It goes outside the idempotency middleware: a stranger must get no
// recorded response, and no key may be reserved in anyone's name.
func authenticate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		scheme, apiKey, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		if !strings.EqualFold(scheme, "Bearer") || !strings.HasPrefix(apiKey, "sk_") {
			w.Header().Set("WWW-Authenticate", "Bearer")
			writeProblem(w, http.StatusUnauthorized, "api_key_missing",
				"send an API key that starts with sk_, as in Authorization: Bearer sk_test_alice")
			return
		}
		ctx := context.WithValue(r.Context(), tenantKey{}, accountOf(apiKey))
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// accountOf stands in for a look-up in the table of API keys. The account is a digest:
// it is stored with each record, where a secret has no business.
func accountOf(apiKey string) string {
	sum := sha256.Sum256([]byte(apiKey))
	return "acct_" + hex.EncodeToString(sum[:16])
}
