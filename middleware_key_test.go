package idempotency_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-2d1e5f61/idempotency"
)

func TestNoKeyIsRefused(t *testing.T) {
	onEachProtocol(t, func(t *testing.T, listen listenFunc) {
		store, h := newFaultStore("Reserve"), &charges{}
		f := newFixture(t, store)
		p := listen(f.Handler(h))
		requireProblem(t, p.post(t, "", "{}"), http.StatusBadRequest, "idempotency_key_missing")
		require.Zero(t, h.Load())
		require.Empty(t, store.called(), "the store was asked")
	})
}

// Two lines are refused even if they are equal: what merged them may have merged two
// requests.
func TestTwoKeysAreRefused(t *testing.T) {
	onEachProtocol(t, func(t *testing.T, listen listenFunc) {
		store, h := newFaultStore("Reserve"), &charges{}
		p := listen(newFixture(t, store).Handler(h))
		for _, second := range []string{"k1", "k2", ""} {
			a := p.post(t, "k1", "{}", "Idempotency-Key", second)
			requireProblem(t, a, http.StatusBadRequest, "idempotency_key_invalid")
		}
		require.Zero(t, h.Load())
		require.Empty(t, store.called())
	})
}

func TestKeySyntaxTable(t *testing.T) {
	t.Parallel()
	var table []struct {
		Name, Line, Key string
		RefusedIfStrict bool
	}
	raw, err := os.ReadFile("testdata/keys.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(raw, &table))

	for _, strict := range []bool{false, true} {
		store := newFaultStore("Reserve")
		h := newFixture(t, store, func(c *idempotency.Config) { c.StrictKey = strict }).Handler(&charges{})
		for _, row := range table {
			r := request("", "{}")
			r.Header["Idempotency-Key"] = []string{row.Line}
			before := len(store.called())
			a := call(h, r)
			calls := store.called()[before:]
			if row.Key == "" || strict && row.RefusedIfStrict {
				requireProblem(t, a, http.StatusBadRequest, "idempotency_key_invalid")
				require.Empty(t, calls, row.Name)
				continue
			}
			require.Equal(t, http.StatusCreated, a.Status, row.Name)
			require.Equal(t, row.Key, calls[0].claim.Key.Value, row.Name)
		}
	}
}

func TestKeyLength(t *testing.T) {
	onEachProtocol(t, func(t *testing.T, listen listenFunc) {
		p := listen(newFixture(t, nil).Handler(&charges{}))
		longest := strings.Repeat("k", 255)
		require.Equal(t, http.StatusCreated, p.post(t, longest, "{}").Status)
		require.True(t, p.post(t, `"`+longest+`"`, "{}").replayed(), "quotes do not count")
		requireProblem(t, p.post(t, longest+"k", "{}"), http.StatusBadRequest, "idempotency_key_invalid")
		requireProblem(t, p.post(t, `"k`+longest+`"`, "{}"), http.StatusBadRequest, "idempotency_key_invalid")
	})
}

// HTTP/2 carries white space around a value that HTTP/1 strips.
func TestFormsOfOneKey(t *testing.T) {
	onEachProtocol(t, func(t *testing.T, listen listenFunc) {
		h := &charges{}
		p := listen(newFixture(t, nil).Handler(h))
		p.post(t, "k", "{}")
		for _, form := range []string{`"k"`, `"k";v=1`, " k\t", "\t\"k\" "} {
			require.True(t, p.post(t, form, "{}").replayed(), form)
		}
		require.EqualValues(t, 1, h.Load())

		for _, other := range []string{"K", `"k "`, "k;v=1"} {
			require.False(t, p.post(t, other, "{}").replayed(), other)
		}
		require.EqualValues(t, 4, h.Load())
	})
}

func TestStrictKey(t *testing.T) {
	onEachProtocol(t, func(t *testing.T, listen listenFunc) {
		p := listen(newFixture(t, nil, func(c *idempotency.Config) { c.StrictKey = true }).Handler(&charges{}))
		requireProblem(t, p.post(t, "k", "{}"), http.StatusBadRequest, "idempotency_key_invalid")
		require.Equal(t, http.StatusCreated, p.post(t, `"k"`, "{}").Status)
		require.True(t, p.post(t, ` "k" `, "{}").replayed())
	})
}

// A client whose key was refused is told what a key looks like, under the name of the
// field that it has to send.
func TestKeyRefusalSaysWhatAKeyIs(t *testing.T) {
	onEachProtocol(t, func(t *testing.T, listen listenFunc) {
		const key = "The My-Key header must come once and hold a key of 1 to 255 visible ASCII characters"
		for strict, want := range map[bool]string{
			false: key + ", quoted as a String (RFC 9651) or bare without quotes and commas, in the form that this API asks for.",
			true:  key + " in double quotes, as a String (RFC 9651), in the form that this API asks for.",
		} {
			p := listen(newFixture(t, nil, func(c *idempotency.Config) {
				c.Header, c.StrictKey, c.CheckKey = "My-Key", strict, idempotency.CheckUUID
			}).Handler(&charges{}))
			for _, lines := range [][]string{{"a,b"}, {`"`}, {`"` + strings.Repeat("k", 256) + `"`}, {`"no UUID"`}, {"k", "k"}} {
				r := p.request(t, "", strings.NewReader("{}"))
				r.Header["My-Key"] = lines
				a, err := p.do(r)
				require.NoError(t, err)
				requireProblem(t, a, http.StatusBadRequest, "idempotency_key_invalid")
				var problem struct{ Detail string }
				require.NoError(t, json.Unmarshal([]byte(a.Body), &problem))
				require.Equal(t, want, problem.Detail, lines)
			}
		}
	})
}

func TestCheckKey(t *testing.T) {
	onEachProtocol(t, func(t *testing.T, listen listenFunc) {
		store := newFaultStore("Reserve")
		var asked []string
		f := newFixture(t, store, func(c *idempotency.Config) {
			c.CheckKey = func(key string) error {
				asked = append(asked, key)
				if key != "good" {
					return errors.New("not good: " + key)
				}
				return nil
			}
		})
		p := listen(f.Handler(&charges{}))
		a := p.post(t, `"secret"`, "{}")
		requireProblem(t, a, http.StatusBadRequest, "idempotency_key_invalid")
		require.NotContains(t, a.Body, "secret")
		require.NotContains(t, f.event(t).Err.Error(), "secret", "its text may show the key")
		require.Empty(t, store.called())
		require.Equal(t, http.StatusCreated, p.post(t, `"good"`, "{}").Status)
		require.Equal(t, []string{"secret", "good"}, asked, "the key is checked without its quotes")
		require.NotContains(t, f.logs.String(), "secret")
	})
}

func TestHeaderNamesTheField(t *testing.T) {
	onEachProtocol(t, func(t *testing.T, listen listenFunc) {
		h := &charges{}
		p := listen(newFixture(t, nil, func(c *idempotency.Config) { c.Header = "x-request-KEY" }).Handler(h))
		a := p.post(t, "k", "{}")
		requireProblem(t, a, http.StatusBadRequest, "idempotency_key_missing")
		require.Contains(t, a.Body, "X-Request-Key header", "a client looks for the field to send")
		require.Equal(t, http.StatusCreated, p.post(t, "", "{}", "X-Request-Key", "k").Status)
		require.True(t, p.post(t, "", "{}", "X-Request-Key", "k").replayed())
		require.EqualValues(t, 1, h.Load())
	})
}

func TestKeyOptional(t *testing.T) {
	onEachProtocol(t, func(t *testing.T, listen listenFunc) {
		store, h := newFaultStore("Reserve"), &charges{}
		f := newFixture(t, store, func(c *idempotency.Config) { c.KeyOptional = true })
		p := listen(f.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Idempotency-Key") == "" {
				assert.Nil(t, idempotency.FromContext(r.Context()))
			}
			h.ServeHTTP(w, r)
		})))
		for range 2 {
			require.Equal(t, http.StatusCreated, p.post(t, "", "{}").Status)
			require.Equal(t, idempotency.Unprotected, f.event(t).Outcome)
		}
		require.EqualValues(t, 2, h.Load())
		require.Empty(t, store.called())

		requireProblem(t, p.post(t, "", "{}", "Idempotency-Key", ""), http.StatusBadRequest, "idempotency_key_invalid")
		p.post(t, "k", "{}")
		require.True(t, p.post(t, "k", "{}").replayed(), "a key that is there protects")
	})
}

func TestUnprotectedMethodsPassThrough(t *testing.T) {
	onEachProtocol(t, func(t *testing.T, listen listenFunc) {
		store, h := newFaultStore("Reserve"), &charges{}
		f := newFixture(t, store, func(c *idempotency.Config) { c.Tenant = unknownTenant })
		p := listen(f.Handler(h))
		for i, method := range []string{"GET", "HEAD", "PUT", "DELETE", "OPTIONS"} {
			for n := range 2 {
				r := p.request(t, "k", nil)
				r.Method = method
				a, err := p.do(r)
				require.NoError(t, err)
				require.Equal(t, http.StatusCreated, a.Status)
				require.EqualValues(t, 2*i+n+1, h.Load(), "the key has no effect")
			}
		}
		require.Empty(t, store.called())
		require.Empty(t, f.events, "a method that passes through has no event")
	})
}

func TestMethods(t *testing.T) {
	onEachProtocol(t, func(t *testing.T, listen listenFunc) {
		h := &charges{}
		methods := []string{"PUT", "DELETE"}
		f := newFixture(t, nil, func(c *idempotency.Config) { c.Methods = methods })
		methods[0] = "changed after New"
		p := listen(f.Handler(h))
		for _, method := range []string{"PUT", "DELETE", "POST", "PATCH"} {
			r := p.request(t, "k", strings.NewReader("{}"))
			r.Method = method
			_, err := p.do(r)
			require.NoError(t, err)
			again := p.request(t, "k", strings.NewReader("{}"))
			again.Method = method
			a, err := p.do(again)
			require.NoError(t, err)
			require.Equal(t, method == "PUT" || method == "DELETE", a.replayed(), method)
		}
	})
}

func TestPatchIsProtected(t *testing.T) {
	onEachProtocol(t, func(t *testing.T, listen listenFunc) {
		p := listen(newFixture(t, nil).Handler(&charges{}))
		for _, replayed := range []bool{false, true} {
			r := p.request(t, "k", strings.NewReader("{}"))
			r.Method = http.MethodPatch
			a, err := p.do(r)
			require.NoError(t, err)
			require.Equal(t, replayed, a.replayed())
		}
	})
}
