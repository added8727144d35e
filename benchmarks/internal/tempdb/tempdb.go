// Package tempdb makes a database that is dropped in the end, so that a measurement
// neither finds nor leaves anything on a server.
package tempdb

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// FromEnv is the server that scripts/test.sh has started, or else DATABASE_URL; "" if
// there is neither.
func FromEnv() string {
	if url := os.Getenv("IDEMPOTENCY_TEST_DATABASE_URL"); url != "" {
		return url
	}
	return os.Getenv("DATABASE_URL")
}

// Create makes a database on the server of serverURL, a postgres:// URL. It returns the
// database's own URL, and drop, which removes it with all connections to it.
func Create(ctx context.Context, serverURL string) (databaseURL string, drop func() error, err error) {
	u, err := url.Parse(serverURL)
	if err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" {
		return "", nil, errors.New("the database must be given as a postgres:// URL") // without the password in it
	}
	name := "idempotency_" + strings.ToLower(rand.Text())
	if err := run(ctx, serverURL, "CREATE DATABASE "+name); err != nil {
		return "", nil, fmt.Errorf("create a database: %w", err)
	}
	drop = func() error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // also after an interrupt
		defer cancel()
		return run(ctx, serverURL, "DROP DATABASE "+name+" WITH (FORCE)")
	}
	u.Path = "/" + name
	return u.String(), drop, nil
}

func run(ctx context.Context, url, sql string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	_, err = conn.Exec(ctx, sql)
	return err
}
