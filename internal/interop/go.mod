module github.com/seed-2d1e5f61/idempotency/internal/interop

go 1.25.0

replace github.com/seed-2d1e5f61/idempotency => ../..

require (
	github.com/go-chi/chi/v5 v5.5.0
	github.com/hashicorp/go-retryablehttp v0.7.8
	github.com/seed-2d1e5f61/idempotency v0.0.0
	github.com/stretchr/testify v1.12.1
	github.com/stripe/stripe-go/v85 v85.0.0
)

require (
	github.com/google/uuid v1.6.0 // indirect
	github.com/hashicorp/go-cleanhttp v0.5.2 // indirect
	github.com/jackc/pgpassfile v1.0.0 // indirect
	github.com/jackc/pgservicefile v0.0.0-20240606120523-5a60cdf6a761 // indirect
	github.com/jackc/pgx/v5 v5.13.0 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/text v0.41.0 // indirect
)
