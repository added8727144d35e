package idempotency

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
)

type fingerprintFunc = func(*http.Request, []byte) ([]byte, error)

func requestOf(contentType string) *http.Request {
	r := &http.Request{Method: http.MethodPost, Header: http.Header{}}
	if contentType != "" {
		r.Header.Set("Content-Type", contentType)
	}
	return r
}

// digestOf is the fingerprint of a POST to /v1/charges.
func digestOf(t testing.TB, f fingerprintFunc, contentType, body string) Fingerprint {
	t.Helper()
	payload, err := f(requestOf(contentType), []byte(body))
	if err != nil {
		t.Fatalf("%s, %q: %v", contentType, body, err)
	}
	return fingerprintOf("POST", "/v1/charges", "", payload)
}

// The digests in testdata never change: a record outlives an upgrade of this package,
// and its retry must find it. They were computed by another implementation. A new case
// may be added; a digest that differs is a fault in the code.
func TestFingerprintGolden(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("testdata/fingerprints.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Name, Function            string
		Fields                    []string
		Method, Path, Query       string
		ContentType, Body, Digest string
		BodyBase64                []byte
	}
	if err := json.Unmarshal(raw, &cases); err != nil || len(cases) < 20 {
		t.Fatalf("%d cases, %v", len(cases), err)
	}
	for _, c := range cases {
		var f fingerprintFunc
		switch c.Function {
		case "body":
			f = FingerprintBody
		case "json":
			f = FingerprintJSON
		case "fields":
			f = FingerprintFields(c.Fields...)
		}
		body := append([]byte(c.Body), c.BodyBase64...)
		payload, err := f(requestOf(c.ContentType), body)
		if err != nil {
			t.Errorf("%s: %v", c.Name, err)
		}
		sum := fingerprintOf(c.Method, c.Path, c.Query, payload)
		if got := hex.EncodeToString(sum[:]); got != c.Digest {
			t.Errorf("%s: got %s, want %s", c.Name, got, c.Digest)
		}
	}
}

func TestFingerprintOfFramesItsParts(t *testing.T) {
	t.Parallel()
	seen := make(map[Fingerprint]string)
	for _, p := range [][4]string{
		{"POST", "/a", "b", "c"}, {"POST", "/ab", "", "c"}, {"POST", "/", "ab", "c"}, {"POST", "/a", "bc", ""},
		{"POST", "/a", "", "bc"}, {"POST/", "a", "b", "c"}, {"", "POST/a", "b", "c"}, {"PATCH", "/a", "b", "c"},
		{"", "", "", ""}, {"", "", "", "\x00"}, {"", "", "\x00", ""}, {"POST", "/%61", "b", "c"}, {"post", "/a", "b", "c"},
		{"POST", "/" + strings.Repeat("a", 2000), "b", "c"}, {"POST", "/a", "b", strings.Repeat("c", 5000)},
	} {
		got := fingerprintOf(p[0], p[1], p[2], []byte(p[3]))
		if other, ok := seen[got]; ok {
			t.Errorf("%.40q and %.40q have one fingerprint", p, other)
		}
		seen[got] = fmt.Sprintf("%q", p)

		var framed []byte
		for _, part := range p {
			framed = appendFramed(framed, part)
		}
		if want := Fingerprint(sha256.Sum256(framed)); got != want {
			t.Errorf("%.40q: fingerprint is not the digest of its framed parts", p)
		}
	}
}

func TestMediaType(t *testing.T) {
	t.Parallel()
	for _, value := range []string{
		"", "application/json", "Application/JSON", "application/json; charset=utf-8", " application/json\t;a=b",
		"multipart/form-data; boundary=x", "text/plain;", "application/problem+json", "TEXT/Plain;;",
	} {
		want, _, err := mime.ParseMediaType(value)
		if err != nil && value != "" && err != mime.ErrInvalidMediaParameter {
			t.Fatalf("%q: %v", value, err)
		}
		if got := mediaType(requestOf(value)); got != want {
			t.Errorf("mediaType of %q = %q, want %q", value, got, want)
		}
	}
	for value, want := range map[string]string{
		"JSON ": "json", ";": "", "a b/C; d": "a b/c", "\xff": "\xff", "\xfe;x": "\xfe", "\u212a/A": "\u212a/A",
	} {
		if got := mediaType(requestOf(value)); got != want {
			t.Errorf("mediaType of %q = %q, want %q", value, got, want)
		}
	}
	if got := mediaType(&http.Request{}); got != "" {
		t.Errorf("mediaType of no header = %q", got)
	}
}

// sameOrNot is a list of bodies under their media type. Two are the same for f if they
// stand in one group, and only then.
type sameOrNot struct {
	name   string
	f      fingerprintFunc
	groups [][][2]string
}

func (s sameOrNot) check(t *testing.T) {
	t.Helper()
	seen := make(map[Fingerprint]int)
	for i, group := range s.groups {
		first := digestOf(t, s.f, group[0][0], group[0][1])
		for _, c := range group {
			got := digestOf(t, s.f, c[0], c[1])
			if got != first {
				t.Errorf("%s: %.200q differs from %.200q", s.name, c, group[0])
			}
			if other, ok := seen[got]; ok && other != i {
				t.Errorf("%s: %.200q is the same as %.200q", s.name, c, s.groups[other][0])
			}
			seen[got] = i
		}
	}
}

const jsonType = "application/json"

func TestFingerprintBodyOfBytes(t *testing.T) {
	t.Parallel()
	sameOrNot{"bytes", FingerprintBody, [][][2]string{
		{{"", ""}},
		{{jsonType, ""}},
		{{jsonType, `{"a":1}`}, {"Application/Json ; charset=utf-8", `{"a":1}`}},
		{{jsonType, `{"a": 1}`}},
		{{"text/json", `{"a":1}`}},
		{{"", `{"a":1}`}},
		{{"\xff", `{"a":1}`}},
		{{"\xfe", `{"a":1}`}},
		{{"application/jso", `n{"a":1}`}},
	}}.check(t)
}

func TestFingerprintJSON(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("[", 1<<20)
	sameOrNot{"JSON", FingerprintJSON, [][][2]string{
		{{jsonType, `{"a":1,"b":[2,{"c":3,"d":"é\n"}]}`}, {jsonType, " {\"b\" :[ 2,{\"d\":\"\\u00e9\\u000A\" , \"c\":3}],\r\n\t\"\\u0061\":1 } "},
			{"application/json;charset=utf-8", `{"b":[2,{"d":"é\n","c":3}],"a":1}`}},
		{{"application/merge-patch+json", `{"a":1,"b":[2,{"c":3,"d":"é\n"}]}`}},
		{{"text/plain", `[1]`}, {"text/plain", ` [ 1 ] `}},
		{{jsonType, `[1]`}},
		{{jsonType, `[1.0]`}},
		{{jsonType, `[1e0]`}},
		{{jsonType, `[-0]`}},
		{{jsonType, `[0]`}},
		{{jsonType, `["1"]`}},
		{{jsonType, `[9007199254740993]`}},
		{{jsonType, `[9007199254740992]`}},
		{{jsonType, `[1,2]`}},
		{{jsonType, `[2,1]`}},
		{{jsonType, `{}`}, {jsonType, ` { } `}},
		{{jsonType, `{"a":null}`}},
		{{jsonType, `{"a":""}`}},
		{{jsonType, `{"A":null}`}},
		{{jsonType, `{"a":1,"a":2}`}},
		{{jsonType, `{"a":2,"a":1}`}},
		{{jsonType, `{"a":1, "a":2}`}},
		{{jsonType, `{"a":2}`}},
		{{jsonType, `"\ud800"`}},
		{{jsonType, `"\ud801"`}},
		{{jsonType, `"\ufffd"`}, {jsonType, `"�"`}},
		{{jsonType, "\"\xff\""}},
		{{jsonType, "\"\xfe\""}},
		{{jsonType, `{"a":1`}},
		{{jsonType, `{ "a":1`}},
		{{jsonType, `{"a":1}x`}},
		{{jsonType, ``}},
		{{jsonType, ` `}},
		{{jsonType, long}},
		{{jsonType, long + "["}},
	}}.check(t)
}

func TestFingerprintJSONLeavesTheRestToBody(t *testing.T) {
	t.Parallel()
	for _, c := range [][2]string{
		{jsonType, `{"a":1,"a":1}`}, {jsonType, "not JSON"}, {"", ""}, {jsonType, strings.Repeat("[", 1001) + strings.Repeat("]", 1001)},
		{"multipart/form-data; boundary=b", "--b\r\n\r\nx\r\n--b--\r\n"},
	} {
		if digestOf(t, FingerprintJSON, c[0], c[1]) != digestOf(t, FingerprintBody, c[0], c[1]) {
			t.Errorf("%.60q: FingerprintJSON and FingerprintBody differ", c)
		}
	}
}

// A body that is taken for bytes must not meet one that was understood, even if the
// bytes are made for it.
func TestFingerprintFormsNeverMeet(t *testing.T) {
	t.Parallel()
	bodies := map[string]fingerprintFunc{"body": FingerprintBody, "JSON": FingerprintJSON, "fields": FingerprintFields("a")}
	seen := make(map[Fingerprint]string)
	for name, f := range bodies {
		got := digestOf(t, f, jsonType, `{"a":1}`) // its own canonical form
		if other, ok := seen[got]; ok {
			t.Errorf("%s and %s meet", name, other)
		}
		seen[got] = name
	}
}

func TestFingerprintsShareNoMemory(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]fingerprintFunc{
		"body": FingerprintBody, "JSON": FingerprintJSON, "fields": FingerprintFields("a", "b"),
	} {
		body := []byte(`{"b":{"d":1,"c":2},"a":1}`)
		first, _ := f(requestOf(jsonType), body)
		want := bytes.Clone(first)
		clear(body)
		_, _ = f(requestOf(jsonType), []byte(`{"b":{"d":3,"c":4},"a":5}`))
		if !bytes.Equal(first, want) {
			t.Errorf("%s: the result changed with the body or the next call", name)
		}
		clear(first)
		again, _ := f(requestOf(jsonType), []byte(`{"b":{"d":1,"c":2},"a":1}`))
		if !bytes.Equal(again, want) {
			t.Errorf("%s: the next result changed with the first one", name)
		}
	}
}

// The documents are so long that goroutines are preempted while they use one, and would
// find another's text in it if it were free for others too early.
func TestFingerprintsConcurrently(t *testing.T) {
	t.Parallel()
	fields := FingerprintFields("b", "a")
	var wg sync.WaitGroup
	for i := range 8 {
		text := strings.Repeat(string(rune('a'+i)), 100_000)
		plain, other := `{"a":[1],"b":{"c":2,"d":"`+text+`"}}`, ` {"b":{"d":"`+text+`", "c":2},"a":[1]}`
		wg.Go(func() {
			for range 5 {
				for _, f := range []fingerprintFunc{FingerprintJSON, fields} {
					if digestOf(t, f, jsonType, plain) != digestOf(t, f, jsonType, other) {
						t.Errorf("%.40s and %.40s differ", plain, other)
					}
				}
			}
		})
	}
	wg.Wait()
}

func TestFingerprintAllocations(t *testing.T) {
	r := requestOf("application/json; charset=utf-8")
	body := []byte(strings.Repeat(`{"amount":1200}`, 1000))
	payload, _ := FingerprintBody(r, body)
	var sink Fingerprint
	if n := testing.AllocsPerRun(100, func() { sink = fingerprintOf("POST", "/v1/charges", "a=b", payload) }); n != 0 {
		t.Errorf("fingerprintOf: %v allocations, want 0", n)
	}
	if n := testing.AllocsPerRun(100, func() { payload, _ = FingerprintBody(r, body) }); n > 1 {
		t.Errorf("FingerprintBody: %v allocations, want 1 at most", n)
	}
	_ = sink
}

func TestCheckUUID(t *testing.T) {
	t.Parallel()
	for _, key := range []string{
		NewKey(), "8e03978e-40d5-43dd-bc93-6894a57f9324", "8E03978E-40D5-43DD-BC93-6894A57F9324",
		"01890a5d-ac96-774b-bcce-b302099a8057", "00000000-0000-1000-8000-000000000000",
	} {
		if err := CheckUUID(key); err != nil {
			t.Errorf("CheckUUID(%q) = %v", key, err)
		}
	}
	const id = "8e03978e-40d5-43dd-bc93-6894a57f9324"
	for _, key := range []string{
		"", "k", "{" + id + "}", "urn:uuid:" + id, strings.ReplaceAll(id, "-", ""), id[:35], id + "0", " " + id[:35],
		"8e03978e-40d5-43dd-bc93-6894a57f932g", "8e03978e40d5-43dd-bc93-6894a57f93240", "8e03978e_40d5_43dd_bc93_6894a57f9324",
		strings.Repeat("-", 36), "00000000-0000-0000-0000-000000000000",
		"ffffffff-ffff-ffff-ffff-ffffffffffff", "FFFFFFFF-FFFF-ffff-ffff-FFFFFFFFFFFF",
	} {
		err := CheckUUID(key)
		if err == nil {
			t.Errorf("CheckUUID(%q) accepted it", key)
		} else if len(key) > 1 && strings.Contains(err.Error(), key) {
			t.Errorf("CheckUUID(%q): error shows the key: %v", key, err)
		}
	}
}
