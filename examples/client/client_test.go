package main

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestPaysOnce(t *testing.T) {
	t.Parallel()
	s := startService(t, nil, nil)
	path := statePath(t)
	for range 2 {
		out, err := inProcess(t, "-url", s.URL, "-state", path)
		require.NoError(t, err)
		assert.Equal(t, "paid 1200 jpy with ch_1\n", out)
	}
	keys, charges := s.requests()
	assert.Len(t, keys, 1, "what is known to be paid is not asked for again")
	assert.Equal(t, 1, charges)

	o := savedOrder(t, path)
	assert.Equal(t, keys[0], o.Key)
	assert.Equal(t, &charge{"ch_1", 1200, "jpy", "succeeded", 1767225600}, o.Charge)
	left, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	assert.Len(t, left, 1, "temporary files")
}

func TestAnotherOrderIsAnotherCharge(t *testing.T) {
	t.Parallel()
	s := startService(t, nil, nil)
	for _, want := range []string{"paid 500 eur with ch_1\n", "paid 500 eur with ch_2\n"} {
		out, err := inProcess(t, "-url", s.URL+"/", "-state", statePath(t), "-amount", "500", "-currency", "eur", "-source", "tok_mastercard")
		require.NoError(t, err)
		assert.Equal(t, want, out)
	}
}

// The charge was made, and the program died before it had saved the answer.
func TestAsksAgainUnderTheKeyIfTheAnswerWasNotSaved(t *testing.T) {
	t.Parallel()
	s := startService(t, nil, nil)
	path := statePath(t)
	var before []byte
	s.before = func(int) { before, _ = os.ReadFile(path) }
	_, err := inProcess(t, "-url", s.URL, "-state", path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, before, 0o600))

	out, err := inProcess(t, "-url", s.URL, "-state", path)
	require.NoError(t, err)
	assert.Equal(t, "paid 1200 jpy with ch_1\n", out)
	keys, charges := s.requests()
	assert.Len(t, keys, 2)
	assert.Len(t, slices.Compact(keys), 1)
	assert.Equal(t, 1, charges)
}

func TestProgramsThatStartTogetherShareTheKey(t *testing.T) {
	t.Parallel()
	s := startService(t, nil, nil)
	path := statePath(t)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			out, err := inProcess(t, "-url", s.URL, "-state", path)
			assert.NoError(t, err)
			assert.Equal(t, "paid 1200 jpy with ch_1\n", out)
		})
	}
	wg.Wait()
	keys, charges := s.requests()
	assert.Len(t, slices.Compact(keys), 1)
	assert.Equal(t, 1, charges)
}

func TestRetriesWithinOneRun(t *testing.T) {
	t.Parallel()
	s := startService(t, nil, func(n int) {
		if n < 3 {
			panic(http.ErrAbortHandler)
		}
	})
	out, err := inProcess(t, "-url", s.URL, "-state", statePath(t))
	require.NoError(t, err)
	assert.Equal(t, "paid 1200 jpy with ch_1\n", out)
	keys, charges := s.requests()
	assert.Len(t, keys, 3)
	assert.Len(t, slices.Compact(keys), 1)
	assert.Equal(t, 1, charges)
}

func TestRefusesWhatWouldBeAnotherCharge(t *testing.T) {
	t.Parallel()
	s := startService(t, func(int) { panic(http.ErrAbortHandler) }, nil)
	path := statePath(t)
	_, err := inProcess(t, "-url", s.URL, "-state", path)
	require.ErrorContains(t, err, path, "where the order is")
	sent, _ := s.requests()

	other := startService(t, nil, nil)
	for _, args := range [][]string{
		{"-url", s.URL, "-amount", "1201"}, {"-url", s.URL, "-currency", "eur"},
		{"-url", s.URL, "-source", "tok_mastercard"}, {"-url", other.URL},
	} {
		_, err := inProcess(t, append(args, "-state", path)...)
		assert.ErrorContains(t, err, "is an order of 1200 jpy from tok_visa at "+s.URL, "%q", args)
	}
	o := savedOrder(t, path)
	o.Created = o.Created.Add(-keyLife)
	require.NoError(t, o.replace(path))
	_, err = inProcess(t, "-url", s.URL, "-state", path)
	assert.ErrorContains(t, err, "may have forgotten its key")

	again, _ := s.requests()
	assert.Equal(t, sent, again, "nothing was sent")
	elsewhere, _ := other.requests()
	assert.Empty(t, elsewhere, "nothing was sent")
}

// Age matters only to an order of which nobody knows whether it was paid.
func TestKnowsAnOldCharge(t *testing.T) {
	t.Parallel()
	path := statePath(t)
	o := order{Key: "k", URL: "http://127.0.0.1:1", Amount: 1200, Currency: "jpy", Source: "tok_visa",
		Created: time.Now().Add(-keyLife), Charge: &charge{ID: "ch_9", Amount: 1200, Currency: "jpy"}}
	require.NoError(t, o.create(path))
	out, err := inProcess(t, "-url", o.URL, "-state", path)
	require.NoError(t, err)
	assert.Equal(t, "paid 1200 jpy with ch_9\n", out)
}

func TestSendsNothingIfTheKeyCannotBeSaved(t *testing.T) {
	t.Parallel()
	s := startService(t, nil, nil)
	garbage := statePath(t)
	require.NoError(t, os.WriteFile(garbage, []byte(`{"url":"`), 0o600))
	keyless := statePath(t)
	require.NoError(t, order{URL: s.URL, Amount: 1200, Currency: "jpy", Source: "tok_visa", Created: time.Now()}.create(keyless))
	for path, want := range map[string]string{
		filepath.Join(t.TempDir(), "missing", "order.json"): "no such file or directory",
		t.TempDir(): "is a directory",
		garbage:     "not an order of this program",
		keyless:     "not an order of this program",
	} {
		_, err := inProcess(t, "-url", s.URL, "-state", path)
		assert.ErrorContains(t, err, want)
	}
	keys, _ := s.requests()
	assert.Empty(t, keys)
}

func TestReportsARefusal(t *testing.T) {
	t.Parallel()
	s := startService(t, nil, nil)
	path := statePath(t)
	_, err := inProcess(t, "-url", s.URL, "-state", path, "-source", "tok_declined")
	require.ErrorContains(t, err, "402 Payment Required: the card")
	assert.Nil(t, savedOrder(t, path).Charge)

	plain := startService(t, nil, nil)
	_, err = inProcess(t, "-url", plain.URL+"/elsewhere", "-state", statePath(t))
	require.ErrorContains(t, err, "the service answers 404 Not Found (the order is in ")
}

func TestReportsWrongFlags(t *testing.T) {
	t.Parallel()
	for want, args := range map[string][]string{
		"-url":                  {"-url", "127.0.0.1:8080"},
		`-url "http://"`:        {"-url", "http://"},
		`-url "ftp://x"`:        {"-url", "ftp://x"},
		"-amount 0":             {"-amount", "0"},
		"-state":                {"-state", ""},
		`"order.json"`:          {"order.json"},
		"not defined: -price":   {"-price", "1"},
		`invalid value "twelve`: {"-amount", "twelve"},
	} {
		out, err := inProcess(t, args...)
		if assert.Error(t, err, "%q", args) {
			assert.Contains(t, err.Error(), want)
			assert.NotContains(t, err.Error(), "\n")
		}
		assert.Empty(t, out)
	}
	out, err := inProcess(t, "-h")
	require.NoError(t, err)
	for _, name := range []string{"-url", "-state", "-amount", "-currency", "-source", "API_KEY"} {
		assert.Contains(t, out, name)
	}
}

func TestStopsWhenAsked(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	ctx, interrupt := context.WithCancel(t.Context())
	s := startService(t, func(int) { interrupt(); <-release }, nil)
	path := statePath(t)
	err := run(ctx, []string{"-url", s.URL, "-state", path}, "sk_test_1", new(strings.Builder))
	close(release)
	require.ErrorIs(t, err, context.Canceled)
	assert.NotEmpty(t, savedOrder(t, path).Key)
}
