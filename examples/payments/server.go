package main

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/seed-2d1e5f61/idempotency"
)

// newHandler puts the layers together, from the outside: who is it, is it a retry, the
// business.
func newHandler(keys *idempotency.Middleware, a *api) http.Handler {
	v1 := http.NewServeMux()
	v1.Handle("POST /v1/charges", keys.Handler(http.HandlerFunc(a.createCharge)))
	v1.HandleFunc("GET /v1/charges", a.listCharges)
	v1.HandleFunc("GET /v1/charges/{id}", a.getCharge)

	root := http.NewServeMux()
	root.Handle("/v1/", authenticate(v1))
	root.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "ok\n")
	})
	return root
}

// idempotency is the configuration of the middleware.
func (cfg config) idempotency() idempotency.Config {
	return idempotency.Config{
		Tenant:         func(r *http.Request) (string, error) { return tenantOf(r.Context()), nil },
		Fingerprint:    idempotency.FingerprintJSON,
		Lease:          cfg.lease,
		HandlerTimeout: cfg.handlerTimeout(),
		AfterCrash:     cfg.afterCrash,
		Observe:        logOutcome,
	}
}

func (cfg config) handlerTimeout() time.Duration { return cfg.latency + 20*time.Second }

// logOutcome writes a line for each request. The key itself may be personal data; its
// digest is enough to find the row.
func logOutcome(ctx context.Context, e idempotency.Event) {
	attrs := []slog.Attr{
		slog.String("outcome", string(e.Outcome)),
		slog.String("tenant", e.Tenant),
		slog.String("endpoint", e.Endpoint),
		slog.String("key_hash", e.KeyHash),
		slog.Int("status", e.Status),
		slog.Int("attempt", e.Attempt),
		slog.Duration("duration", e.Duration),
	}
	if e.Err != nil {
		attrs = append(attrs, slog.Any("err", e.Err))
	}
	slog.LogAttrs(ctx, slog.LevelInfo, "idempotency", attrs...)
}

// newServer speaks HTTP/1 and HTTP/2 without TLS, which a proxy in front would add.
func newServer(cfg config, h http.Handler) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler:           h,
		Protocols:         protocols,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       30 * time.Second,
		WriteTimeout:      30*time.Second + cfg.handlerTimeout(),
		IdleTimeout:       2 * time.Minute,
	}
}
