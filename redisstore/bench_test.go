package redisstore

import (
	"bytes"
	"context"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/seed-2d1e5f61/idempotency"
	"github.com/seed-2d1e5f61/idempotency/redisstore/internal/testredis"
)

// charge is a response of an ordinary size: 200 bytes of JSON.
var charge = idempotency.Response{
	Status: http.StatusCreated,
	Header: http.Header{"Content-Type": {"application/json"}, "Location": {"/v1/charges/ch_1"}},
	Body:   bytes.Repeat([]byte(`{"id":"ch"}`), 200/11+1)[:200],
}

// BenchmarkFresh is a key's first request: reserve and complete. It also reports what a
// record takes in the server's memory and in its append-only file.
func BenchmarkFresh(b *testing.B) {
	bench(b, func(b *testing.B, s *Store, next func() bool) error {
		for next() {
			c := newClaim()
			if _, err := s.Reserve(b.Context(), c); err != nil {
				return err
			}
			if err := s.Complete(b.Context(), c, charge); err != nil {
				return err
			}
		}
		return nil
	})
}

// BenchmarkReplay is a retry of a request whose outcome is recorded.
func BenchmarkReplay(b *testing.B) {
	c := newClaim()
	bench(b, func(b *testing.B, s *Store, next func() bool) error {
		if _, err := s.Reserve(b.Context(), c); err != nil {
			return err
		}
		if err := s.Complete(b.Context(), c, charge); err != nil {
			return err
		}
		for next() {
			if _, err := s.Reserve(b.Context(), c); err != nil {
				return err
			}
		}
		return nil
	})
}

// BenchmarkFloor is what go-redis and the server need to keep as many bytes under a
// key: one SET.
func BenchmarkFloor(b *testing.B) {
	bench(b, func(b *testing.B, s *Store, next func() bool) error {
		for next() {
			if err := s.client.Set(b.Context(), s.name(newClaim().Key), charge.Body, 0).Err(); err != nil {
				return err
			}
		}
		return nil
	})
}

// bench has 16 callers at a server that keeps an append-only file: alone, and with a
// replica that must have each write.
func bench(b *testing.B, caller func(b *testing.B, s *Store, next func() bool) error) {
	primary, replica := testredis.Start(b, "appendonly yes"), testredis.Start(b)
	run := func(name string, cfg Config) {
		b.Run(name, func(b *testing.B) {
			s := open(b, primary.Client(b), cfg)
			if err := s.client.FlushAll(context.Background()).Err(); err != nil {
				b.Fatal(err)
			}
			memory, file := size(b, primary)
			b.SetParallelism(8)
			b.ReportAllocs()
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				if err := caller(b, s, pb.Next); err != nil {
					b.Error(err)
				}
			})
			b.StopTimer()
			memoryAfter, fileAfter := size(b, primary)
			b.ReportMetric((memoryAfter-memory)/float64(b.N), "memory-B/op")
			b.ReportMetric((fileAfter-file)/float64(b.N), "aof-B/op")
		})
	}
	run("alone", Config{})
	primary.Do(b, "CONFIG", "SET", "hash-max-listpack-value", 1024)
	run("hash-max-listpack-value=1024", Config{})
	replica.Replicate(b, primary)
	run("MinReplicas=1", Config{MinReplicas: 1, ReplicaTimeout: 2 * time.Second})
}

func size(b *testing.B, server *testredis.Server) (memory, file float64) {
	b.Helper()
	info, _ := parseInfo(server.Do(b, "INFO").(string))
	memory, _ = strconv.ParseFloat(info["used_memory"], 64)
	file, _ = strconv.ParseFloat(info["aof_current_size"], 64)
	return memory, file
}
