package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/seed-2d1e5f61/idempotency/redisstore/internal/testredis"
)

// output is what a program has printed so far.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// start runs the program until the test ends, and returns its URL.
func start(t *testing.T, env map[string]string) (base string, out *output) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	out = new(output)
	env["ADDR"] = "127.0.0.1:0"
	go func() { ended <- run(ctx, func(name string) string { return env[name] }, out) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	listening := regexp.MustCompile(`Listening on (http://\S+)\.`)
	testredis.Eventually(t, "the program listens", func() bool { return listening.MatchString(out.String()) })
	return listening.FindStringSubmatch(out.String())[1], out
}

func post(t *testing.T, base, key, body string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, base+"/v1/charges", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer sk_test")
	req.Header.Set("Idempotency-Key", key)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(text)
}

func TestACharge(t *testing.T) {
	t.Parallel()
	cluster := testredis.StartCluster(t)
	for name, url := range map[string]string{
		"one server": "redis://" + testredis.Start(t).Addr,
		"a cluster":  fmt.Sprintf("redis://%s, redis://%s", cluster.Masters[0].Addr, cluster.Masters[1].Addr),
	} {
		t.Run(name, func(t *testing.T) {
			base, out := start(t, map[string]string{"REDIS_URL": url})
			if !strings.Contains(out.String(), "appendonly is off") {
				t.Errorf("it does not say that records can get lost: %s", out)
			}
			const order = `{"order_id":"o-1","amount":1200,"currency":"jpy"}`
			first, body := post(t, base, "k-1", order)
			if first.StatusCode != http.StatusCreated {
				t.Fatalf("%s: %s", first.Status, body)
			}
			again, replay := post(t, base, "k-1", order)
			if again.Header.Get("Idempotent-Replayed") != "true" || replay != body {
				t.Errorf("no replay: %v %s", again.Header, replay)
			}
			if resp, _ := post(t, base, "k-2", order); resp.StatusCode != http.StatusConflict {
				t.Errorf("the order was charged twice: %s", resp.Status)
			}
			if resp, _ := post(t, base, "k-3", `{"order_id":"o-2"}`); resp.StatusCode != http.StatusBadRequest {
				t.Errorf("no amount: %s", resp.Status)
			}
			if resp, _ := post(t, base, "k-3", `{"order_id":"o-2","amount":5,"currency":"jpy"}`); resp.StatusCode != http.StatusCreated {
				t.Errorf("the key of a refused request is not free: %s", resp.Status)
			}
		})
	}
}

func TestWrongConfiguration(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	for _, env := range []map[string]string{
		{"REDIS_URL": "postgres://user:s3cret@127.0.0.1/"},
		{"REDIS_URL": "redis://user:s3cret@127.0.0.1:port/"},
		{"REDIS_URL": "redis://user:s3cret@127.0.0.1:1/"},
		{"REDIS_URL": "redis://" + server.Addr, "MIN_REPLICAS": "many"},
		{"REDIS_URL": "redis://" + server.Addr, "ADDR": "nowhere"},
	} {
		err := run(t.Context(), func(name string) string { return env[name] }, io.Discard)
		if err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%v: %v", env, err)
		}
	}
}
