package idempotency

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"math/rand/v2"
	"mime/multipart"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/seed-2d1e5f61/idempotency/internal/canonjson"
)

var jsonSeeds = []string{
	`{"amount":1200,"currency":"jpy","source":"tok_visa"}`, `{"b":[1.0,{"d":null,"c":"é\n"}],"a":{"😂":-0,"דּ":1e5}}`,
	`[]`, `{}`, `""`, `[9007199254740993]`, `[9007199254740992]`, `{"a":1,"a":2}`, `{"a":1`, `"\ud800"`, `"\ud83d\ude02"`, ` [ 1 , 2 ] `,
	`{"":{"":{"":[[],{}]}}}`, "\"\xff\"", `{"\u0000":"\u001f\u007f\u2028"}`, `[true,false,null]`,
}

// decodeJSON returns the value of a document that FingerprintJSON understands; to
// encoding/json numbers are text then.
func decodeJSON(src []byte) (v any, ok bool) {
	if !new(canonjson.Document).Parse(src) {
		return nil, false
	}
	dec := json.NewDecoder(bytes.NewReader(src))
	dec.UseNumber()
	return v, dec.Decode(&v) == nil
}

// FuzzFingerprintJSONRewritten writes a document anew at random: it must stay the same.
func FuzzFingerprintJSONRewritten(f *testing.F) {
	for i, seed := range jsonSeeds {
		f.Add([]byte(seed), uint64(i))
	}
	f.Fuzz(func(t *testing.T, src []byte, seed uint64) {
		v, ok := decodeJSON(src)
		if !ok {
			if digestOf(t, FingerprintJSON, jsonType, string(src)) != digestOf(t, FingerprintBody, jsonType, string(src)) {
				t.Fatalf("%q is not unambiguous JSON but has a fingerprint of its own", src)
			}
			return
		}
		w := rewriter{rand: rand.New(rand.NewPCG(seed, 0))}
		w.value(v)
		again := w.String()
		if digestOf(t, FingerprintJSON, jsonType, string(src)) != digestOf(t, FingerprintJSON, jsonType, again) {
			t.Fatalf("%q and %q differ", src, again)
		}
		members, _ := v.(map[string]any)
		_, lower := members["a"]
		if _, upper := members["A"]; lower && !upper {
			fields := FingerprintFields("a", "")
			if digestOf(t, fields, jsonType, string(src)) != digestOf(t, fields, jsonType, again) {
				t.Fatalf("%q and %q differ in their fields", src, again)
			}
		}
	})
}

// FuzzFingerprintJSONPair takes two documents: they are the same if and only if they have
// the same value, or the same bytes where there is none.
func FuzzFingerprintJSONPair(f *testing.F) {
	for i, seed := range jsonSeeds {
		f.Add([]byte(seed), []byte(jsonSeeds[(i+1)%len(jsonSeeds)]))
		f.Add([]byte(seed), []byte(" "+seed))
	}
	f.Add([]byte(`{"a":1,"b":2}`), []byte(`{"b":2,"a":1}`))
	f.Add([]byte(`{"a":"b,\"c\":1"}`), []byte(`{"a":"b","c":1}`))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		one, oneOK := decodeJSON(a)
		two, twoOK := decodeJSON(b)
		same := bytes.Equal(a, b) || oneOK && twoOK && reflect.DeepEqual(one, two)
		if got := digestOf(t, FingerprintJSON, jsonType, string(a)) == digestOf(t, FingerprintJSON, jsonType, string(b)); got != same {
			t.Fatalf("%q and %q: same fingerprint: %t, same document: %t", a, b, got, same)
		}
	})
}

// rewriter writes JSON with white space, member order and escapes at random.
type rewriter struct {
	strings.Builder
	rand *rand.Rand
}

func (w *rewriter) space() {
	for w.rand.IntN(3) == 0 {
		w.WriteByte(" \t\r\n"[w.rand.IntN(4)])
	}
}

func (w *rewriter) value(v any) {
	w.space()
	switch v := v.(type) {
	case map[string]any:
		names := slices.Sorted(maps.Keys(v))
		w.rand.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		w.list("{}", len(names), func(i int) {
			w.space()
			w.text(names[i])
			w.space()
			w.WriteByte(':')
			w.value(v[names[i]])
		})
	case []any:
		w.list("[]", len(v), func(i int) { w.value(v[i]) })
	case string:
		w.text(v)
	case json.Number:
		w.WriteString(v.String())
	case bool:
		w.WriteString(strconv.FormatBool(v))
	case nil:
		w.WriteString("null")
	}
	w.space()
}

func (w *rewriter) list(brackets string, n int, element func(i int)) {
	w.WriteByte(brackets[0])
	for i := range n {
		if i > 0 {
			w.WriteByte(',')
		}
		element(i)
	}
	w.space()
	w.WriteByte(brackets[1])
}

func (w *rewriter) text(s string) {
	w.WriteByte('"')
	for _, r := range s {
		short := strings.IndexRune("\"\\/\b\f\n\r\t", r)
		switch choice := w.rand.IntN(3); {
		case short >= 0 && choice > 0:
			w.WriteByte('\\')
			w.WriteByte(`"\/bfnrt`[short])
		case r < 0x20 || r == '"' || r == '\\' || choice == 0:
			for _, unit := range utf16.Encode([]rune{r}) {
				hex := strconv.FormatUint(0x10000|uint64(unit), 16)[1:]
				if w.rand.IntN(2) == 0 {
					hex = strings.ToUpper(hex)
				}
				w.WriteString(`\u` + hex)
			}
		default:
			w.WriteRune(r)
		}
	}
	w.WriteByte('"')
}

// readParts is what net/http would make of a multipart body.
func readParts(body []byte, boundary string) (parts []string, failed bool) {
	reader := multipart.NewReader(bytes.NewReader(body), boundary)
	for {
		part, err := reader.NextRawPart()
		if err != nil {
			return parts, err != io.EOF
		}
		content, err := io.ReadAll(part)
		parts = append(parts, string(appendHeader(nil, part.Header))+string(content))
		if err != nil {
			return parts, true
		}
	}
}

// FuzzFingerprintMultipart takes two bodies of one boundary. A new name for the boundary
// must change nothing, neither the digest nor what a reader sees; anything else must
// change the digest.
func FuzzFingerprintMultipart(f *testing.F) {
	a, b := textPart("a", "1"), textPart("b", "2\r\n")
	for _, seed := range [][2]string{
		{form("x", a, b), form("x", b, a)}, {form("x", a, b), form("x", a+"2", b)}, {form("x", a), form("x", "X: y\r\n"+a)},
		{form("x"), "\r\n" + form("x")}, {"pre\r\n" + form("x", a) + "post", form("x", a)}, {"--x\r\n--x--", "--x--"},
		{"--x\n\n1\n--x--\n", "--x\r\n\r\n\r\n--x--"}, {form("x", "\r\n--x"), form("x", "\r\n\n--x")}, {"--x--x--", "--x \r\n\r\n\r\n--x--"},
		{form("x", "\r\n1\n--\r\n-"), form("x", "\r\n1\n-\r\n--")}, {"", "--"}, {form("x", "A: b"), form("x", "A: b\r\n")},
	} {
		f.Add([]byte(seed[0]), []byte(seed[1]), "x")
	}
	f.Add([]byte(form("----gecko", a)), []byte(form("----gecko", b)), "----gecko")
	f.Add([]byte(form("-", a)), []byte(form("-", "\r\n-")), "-")
	f.Fuzz(func(t *testing.T, one, two []byte, boundary string) {
		sum, ok := multipartSum(one, boundary)
		if !ok {
			return
		}
		const fresh = "0f8fad5b-d9cb-469f-a165-70867728950e"
		if !bytes.Contains(one, []byte(fresh)) {
			renamed := bytes.ReplaceAll(one, []byte("--"+boundary), []byte("--"+fresh))
			if again, ok := multipartSum(renamed, fresh); !ok || again != sum {
				t.Fatalf("%q: a new boundary makes a difference", one)
			}
			parts, failed := readParts(one, boundary)
			otherParts, otherFailed := readParts(renamed, fresh)
			if failed != otherFailed || !slices.Equal(parts, otherParts) {
				t.Fatalf("%q: a new boundary is read as %q, %t instead of %q, %t", one, otherParts, otherFailed, parts, failed)
			}
		}
		if other, ok := multipartSum(two, boundary); ok && (other == sum) != bytes.Equal(one, two) {
			t.Fatalf("%q and %q: same digest: %t", one, two, other == sum)
		}
	})
}

// FuzzFingerprintMultipartParts moves one byte range between two parts and between
// header and content.
func FuzzFingerprintMultipartParts(f *testing.F) {
	f.Add("X-A: 1", "content", "more", "b1", "b2", uint8(3))
	f.Add("", "", "\r\n", "b1", "", uint8(0))
	f.Fuzz(func(t *testing.T, header, content, rest, boundary, other string, at uint8) {
		split := func(n int) []string {
			all := content + rest
			n = min(n, len(all))
			return []string{header + "\r\n\r\n" + all[:n], "\r\n" + all[n:]}
		}
		here := split(int(at))
		sum, ok := multipartSum([]byte(form(boundary, here...)), boundary)
		if !ok {
			return
		}
		if again, ok := multipartSum([]byte(form(other, here...)), other); ok && again != sum {
			t.Fatalf("%q: boundaries %q and %q make a difference", here, boundary, other)
		}
		for _, shifted := range [][]string{split(int(at) + 1), {here[0] + here[1]}, {here[1], here[0]}, {"\r\n" + here[0], here[1]}} {
			moved, ok := multipartSum([]byte(form(boundary, shifted...)), boundary)
			if ok && moved == sum && !slices.Equal(shifted, here) {
				t.Fatalf("%q and %q have one digest", here, shifted)
			}
		}
	})
}
