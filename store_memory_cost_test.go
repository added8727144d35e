package idempotency

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// costClaim is a claim of ordinary size: a tenant, a method and path, a UUID.
func costClaim(n int) Claim {
	return Claim{
		Key: Key{
			Tenant:   "tenant-" + strconv.Itoa(n%100),
			Endpoint: "POST /v1/charges",
			Value:    fmt.Sprintf("3f7c2a51-9f2e-4d0b-8a77-%012d", n),
		},
		Fingerprint: sha256.Sum256(strconv.AppendInt(nil, int64(n), 10)),
		Token:       uuid.New(),
		Lease:       30 * time.Second,
		TTL:         24 * time.Hour,
	}
}

func costResponse() Response {
	body := make([]byte, 200)
	copy(body, `{"id":"ch_1","amount":1200}`)
	return Response{
		Status: http.StatusCreated,
		Header: http.Header{
			"Content-Type": {"application/json"},
			"Location":     {"/v1/charges/ch_1"},
		},
		Body: body,
	}
}

// payloadOf counts what a record of c and resp is made of.
func payloadOf(c Claim, resp Response) int {
	n := len(c.Key.Tenant) + len(c.Key.Endpoint) + len(c.Key.Value) + len(resp.Body)
	for name, values := range resp.Header {
		n += len(name)
		for _, value := range values {
			n += len(value)
		}
	}
	return n
}

// runThrough reserves and completes c.
func runThrough(tb testing.TB, s *MemoryStore, c Claim, resp Response) {
	rec, err := s.Reserve(context.Background(), c)
	if err != nil || rec.State != Acquired {
		tb.Fatal(rec.State, err)
	}
	if err := s.Complete(context.Background(), c, resp); err != nil {
		tb.Fatal(err)
	}
}

// Not parallel, like everything here that counts allocations.
func TestMemoryStoreAllocations(t *testing.T) {
	ctx := context.Background()
	resp := costResponse()

	t.Run("fresh", func(t *testing.T) {
		const runs = 20_000
		claims := make([]Claim, runs+1) // AllocsPerRun calls once more to warm up
		for i := range claims {
			claims[i] = costClaim(i)
		}
		s, i := new(MemoryStore), 0
		got := testing.AllocsPerRun(runs, func() {
			runThrough(t, s, claims[i], resp)
			i++
		})
		require.LessOrEqual(t, got, 3.0, "the key, the record, the outcome")
	})

	t.Run("replay", func(t *testing.T) {
		s := new(MemoryStore)
		c := costClaim(0)
		runThrough(t, s, c, resp)
		got := testing.AllocsPerRun(1000, func() {
			rec, err := s.Reserve(ctx, c)
			if err != nil || rec.State != Completed || len(rec.Response.Body) != len(resp.Body) {
				t.Fatal(rec.State, err)
			}
		})
		require.LessOrEqual(t, got, 4.0, "the header's map (2), its values, the body")
	})

	t.Run("duplicate in flight", func(t *testing.T) {
		s := new(MemoryStore)
		c := costClaim(0)
		_, err := s.Reserve(ctx, c)
		require.NoError(t, err)
		c.Token = uuid.New()
		got := testing.AllocsPerRun(1000, func() {
			if rec, err := s.Reserve(ctx, c); err != nil || rec.State != InFlight {
				t.Fatal(rec.State, err)
			}
		})
		require.Zero(t, got)
	})
}

// Memory of a live record: at most 1.5 times its payload and 300 bytes. The numbers of
// records are chosen where the maps of Go have just grown, and where they are nearly
// full.
func TestMemoryStoreMemoryPerRecord(t *testing.T) {
	plain := costClaim(0).Key
	for _, test := range []struct {
		name    string
		tenant  string
		resp    Response
		records []int
	}{
		{"next to nothing", "", Response{Status: http.StatusNoContent}, []int{20_000, 30_000}},
		{"small body", plain.Tenant, costResponse(), []int{20_000, 30_000}},
		{"long body", plain.Tenant, Response{Status: http.StatusOK, Body: make([]byte, 8<<10)}, []int{4_000}},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, records := range test.records {
				s, payload := new(MemoryStore), 0
				before := heapInUse()
				for i := range records {
					c := costClaim(i)
					if test.tenant == "" {
						c.Key = Key{Value: strconv.Itoa(i)}
					}
					runThrough(t, s, c, test.resp)
					payload += payloadOf(c, test.resp)
				}
				perRecord := float64(heapInUse()-before) / float64(records)
				runtime.KeepAlive(s)

				mean := float64(payload) / float64(records)
				t.Logf("%d records: %.0f B each for a payload of %.0f B", records, perRecord, mean)
				require.LessOrEqual(t, perRecord, 1.5*mean+300)
			}
		})
	}
}

func heapInUse() int64 {
	runtime.GC()
	runtime.GC() // what the first one's finalizers held
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// What has died is dropped by the reserves that follow.
func TestMemoryStoreForgetsAsItGoes(t *testing.T) {
	t.Parallel()
	s := new(MemoryStore)
	for i := range 5_000 {
		c := costClaim(i)
		c.Lease, c.TTL = time.Nanosecond, time.Nanosecond
		_, err := s.Reserve(t.Context(), c)
		require.NoError(t, err)
	}
	kept := 0
	for i := range s.shards {
		kept += len(s.shards[i].mortals)
		require.Len(t, s.shards[i].index, len(s.shards[i].mortals))
	}
	require.LessOrEqual(t, kept, 2*len(s.shards), "all but the last of each shard are dead")
}

// The cost of a call does not depend on how many records there are.
func BenchmarkMemoryStore(b *testing.B) {
	resp, base := costResponse(), costClaim(0)
	claim := func(n int) Claim {
		c := base
		c.Key.Value = strconv.Itoa(1_000_000_000 + n)
		return c
	}
	for _, live := range []int{1_000, 1_000_000} {
		s, next := new(MemoryStore), 0
		for ; next < live; next++ {
			runThrough(b, s, claim(next), resp)
		}
		b.Run(fmt.Sprintf("replay/live=%d", live), func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				c := claim(next - live + i*7919%live) // not in the order of memory
				if rec, err := s.Reserve(b.Context(), c); err != nil || rec.State != Completed {
					b.Fatal(rec.State, err)
				}
			}
		})
		b.Run(fmt.Sprintf("fresh/live=%d", live), func(b *testing.B) {
			b.ReportAllocs()
			for ; b.Loop(); next++ {
				c := claim(next)
				runThrough(b, s, c, resp)
				// For each key that comes the oldest goes, as in a store that has been
				// running for longer than its TTL.
				sh, _ := s.lock(c.Key)
				s.drop(sh, sh.mortals[0].record)
				sh.mu.Unlock()
			}
		})
	}
}
