package canonjson

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func TestCanonical(t *testing.T) {
	t.Parallel()
	cases := []struct{ name, src, want string }{
		{"white space", " \t\r\n{ \"a\" : [ 1 , 2 ] , \"b\" : { } } \n", `{"a":[1,2],"b":{}}`},
		{"empty containers", `[ [ ] , { } ]`, `[[],{}]`},
		{"literals", `[ true,false,null ]`, `[true,false,null]`},
		{"scalar string", `"x"`, `"x"`},
		{"scalar number", ` 1 `, `1`},
		{"members sorted", `{"b":1,"a":2,"c":3}`, `{"a":2,"b":1,"c":3}`},
		{"a prefix sorts first", `{"ab":1,"a!":2,"a":3}`, `{"a":3,"a!":2,"ab":1}`},
		{"elements not sorted", `[2,1]`, `[2,1]`},
		{"nested, both out of order", `{"b":{"d":1,"c":2},"a":[{"f":3,"e":4}]}`, `{"a":[{"e":4,"f":3}],"b":{"c":2,"d":1}}`},
		{"outer in order only", `{"a":{"c":1,"b":2},"d":{"f":1,"e":2}}`, `{"a":{"b":2,"c":1},"d":{"e":2,"f":1}}`},
		{"inner in order only", `{"b":{"c":1,"d":2},"a":0}`, `{"a":0,"b":{"c":1,"d":2}}`},
		{"siblings out of order", `[{"b":1,"a":2},0,{"d":1,"c":2}]`, `[{"a":2,"b":1},0,{"c":2,"d":1}]`},
		{"sorted without escapes", `{"A":1,"\n":2,"\u0001":3,"\"":4,"\\":5,"a":6}`, `{"\u0001":3,"\n":2,"\"":4,"A":1,"\\":5,"a":6}`},
		{"escapes of two lengths", `{"\u001f":1,"\r":2,"\t":3,"\u000b":4}`, `{"\t":3,"\u000b":4,"\r":2,"\u001f":1}`},
		{"sorted by bytes, not UTF-16", `{"😂":1,"דּ":2}`, `{"דּ":2,"😂":1}`},
		{"empty name", `{"a":1,"":2}`, `{"":2,"a":1}`},
		{"same name in two objects", `{"a":{"a":1},"b":{"a":1}}`, `{"a":{"a":1},"b":{"a":1}}`},
		{"short escapes", `"\u0008\u0009\u000a\u000c\u000d\u0022\u005C\/"`, `"\b\t\n\f\r\"\\/"`},
		{"other controls", `"\u0000\u000B\u001F"`, `"\u0000\u000b\u001f"`},
		{"unescaped", `"\u0041\u007f\u00e9\u20AC"`, "\"A\u007fé€\""},
		{"surrogate pair", `"\ud83d\uDE02"`, `"😂"`},
		{"U+FFFD written out", `"\ufffd�"`, `"��"`},
		{"not normalised", `"A\u030a"`, "\"A\u030a\""},
		{"number text stays", `[1,1.0,1e0,1E0,1e+0,10e-1,-0,0,-0.0,100]`, `[1,1.0,1e0,1E0,1e+0,10e-1,-0,0,-0.0,100]`},
		{"digits beyond float64", `[9007199254740993,0.10000000000000000001]`, `[9007199254740993,0.10000000000000000001]`},
	}
	var d Document // one for all, as its users do
	for _, c := range cases {
		if !d.Parse([]byte(c.src)) {
			t.Errorf("%s: Parse(%q) = false", c.name, c.src)
		} else if got := string(d.Canonical()); got != c.want {
			t.Errorf("%s: %q became %q, want %q", c.name, c.src, got, c.want)
		}
	}
}

func TestRefused(t *testing.T) {
	t.Parallel()
	cases := map[string][]string{
		"not a document":   {"", " ", "\x00", "x", "{}{}", "1 2", "1,", "{}x", "[1]\x00", "\ufeff{}", "// c\n1", "'a'"},
		"broken container": {"[", "]", "[1", "[1,", "[1,]", "[,1]", "[1 2]", "{", "}", "{]", "[}", `{"a"`, `{"a":`, `{"a":1`, `{"a":1,`, `{"a":1,}`, `{,}`, `{"a" 1}`, `{"a":}`, `{a:1}`, `{1:1}`, `{"a":1 "b":2}`, `{"a":1;"b":2}`},
		"broken literal":   {"tru", "truE", "nul", "fals", "True", "NaN", "Infinity", "nulll", "truefalse"},
		"broken number":    {"-", "+1", "01", "-01", "1.", ".1", "1.e1", "1e", "1e+", "0x1", "1_0", "1e1.5", "--1", "1..2", "٣"},
		"broken string":    {`"`, `"a`, `"\`, `"\"`, `"\x"`, `"\u"`, `"\u12"`, `"\u123g"`, `"\u 123"`, `"\U0041"`, "\"\n\"", "\"\x00\"", "\"\x1f\"", "\"a\tb\""},
		"repeated name":    {`{"a":1,"a":1}`, `{"a":1,"b":2,"a":3}`, `{"b":1,"a":2,"b":3}`, `{"a":1,"\u0061":2}`, `{"\n":1,"\u000a":2}`, `{"é":1,"\u00e9":2}`, `[{"x":{"":1,"":2}}]`, `{"y":1,"x":{"b":1,"a":2,"b":3}}`},
		"half a surrogate": {`"\ud800"`, `"\udc00"`, `"\ud800x"`, `"\ud800\n"`, `"\ud800\u0041"`, `"\ud800\ud800"`, `"\udc00\ud800"`, `{"\ud800":1}`},
		"not UTF-8":        {"\"\xff\"", "\"\xc3\"", "\"\xc0\x80\"", "\"\xed\xa0\x80\"", "\"\xf4\x90\x80\x80\"", "\"\xc3\\n\xa9\"", "{\"\xff\":1}", "\xff"},
	}
	var d Document
	for why, sources := range cases {
		for _, src := range sources {
			if d.Parse([]byte(src)) {
				t.Errorf("%s: Parse(%q) = true, %q", why, src, d.Canonical())
			}
		}
	}
}

func TestDepth(t *testing.T) {
	t.Parallel()
	var d Document
	for _, c := range []struct {
		name, open, inner, end string
		depth                  int
		want                   bool
	}{
		{"arrays at the limit", "[", "1", "]", 1000, true},
		{"arrays over it", "[", "1", "]", 1001, false},
		{"objects at the limit", `{"b":`, `1`, `,"a":2}`, 1000, true},
		{"objects over it", `{"b":`, `1`, `,"a":2}`, 1001, false},
		{"a megabyte of brackets", "[", "", "", 1 << 20, false},
		{"a megabyte of objects", `{"":`, "", "", 1 << 18, false},
	} {
		src := strings.Repeat(c.open, c.depth) + c.inner + strings.Repeat(c.end, c.depth)
		if got := d.Parse([]byte(src)); got != c.want {
			t.Errorf("%s: Parse = %t", c.name, got)
		}
		if c.want && c.open != "[" {
			want := strings.Repeat(`{"a":2,"b":`, c.depth) + c.inner + strings.Repeat("}", c.depth)
			if got := string(d.Canonical()); got != want {
				t.Errorf("%s: canonical text is wrong: %.60s", c.name, got)
			}
		}
	}
}

func TestMember(t *testing.T) {
	t.Parallel()
	var d Document
	const src = `{"z":{"y":1, "x":[{"b":1,"a":2}]}, "\u0061":"v", "n":null, "q\"":"", "\u00e9":1.0, "c":{"d":1,"b":{"f":1,"e":2}}}`
	if !d.Parse([]byte(src)) {
		t.Fatal("not parsed")
	}
	want := map[string]string{
		"z": `{"x":[{"a":2,"b":1}],"y":1}`, "a": `"v"`, "n": `null`, `q"`: `""`, "é": `1.0`,
		"c": `{"b":{"e":2,"f":1},"d":1}`,
	}
	got := make(map[string][]byte)
	for name := range want {
		value, ok := d.Member(name)
		if !ok {
			t.Errorf("Member(%q): not found", name)
		}
		got[name] = value
	}
	for name := range want { // the first results must not suffer from the later calls
		if string(got[name]) != want[name] {
			t.Errorf("Member(%q) = %q, want %q", name, got[name], want[name])
		}
	}
	for _, name := range []string{"", "Z", "x", "y", `\u0061`, `q\"`, "\xc3", "d"} {
		if value, ok := d.Member(name); ok {
			t.Errorf("Member(%q) = %q, want none", name, value)
		}
	}
	for name, want := range map[string]bool{"A": true, "a": false, "É": true, `Q"`: true, "Z": true, "x": false, "Y": false, "": false} {
		if got := d.HasVariant(name); got != want {
			t.Errorf("HasVariant(%q) = %t", name, got)
		}
	}
	for _, src := range []string{`[{"a":1}]`, `"a"`, `1`, `[]`} {
		if !d.Parse([]byte(src)) {
			t.Errorf("%s: not parsed", src)
		} else if value, ok := d.Member("a"); ok {
			t.Errorf("%s: Member(a) = %q, want none", src, value)
		}
	}
}

func TestParseReusesMemory(t *testing.T) {
	src := []byte(order(50))
	var d Document
	work := func() {
		if !d.Parse(src) {
			t.Error("not parsed")
		}
		_ = d.Canonical()
	}
	work()
	if n := testing.AllocsPerRun(20, work); n != 0 {
		t.Errorf("%v allocations for a document of a size seen before, want 0", n)
	}
}

// The canonical text is RFC 8785's, but for numbers and for names on both sides of
// U+FFFF.
func TestVectorsJCS(t *testing.T) {
	t.Parallel()
	dir := os.Getenv("IDEMPOTENCY_VECTORS")
	if dir == "" {
		t.Skip("IDEMPOTENCY_VECTORS is not set: third-party vectors are not checked")
	}
	dir = filepath.Join(dir, "jcs", "testdata")
	inputs, err := filepath.Glob(filepath.Join(dir, "input", "*.json"))
	if err != nil || len(inputs) < 6 {
		t.Fatalf("%d vectors, %v", len(inputs), err)
	}
	for _, input := range inputs {
		src, err := os.ReadFile(input)
		if err != nil {
			t.Fatal(err)
		}
		output, err := os.ReadFile(filepath.Join(dir, "output", filepath.Base(input)))
		if err != nil {
			t.Fatal(err)
		}
		var d Document
		if !d.Parse(src) {
			t.Errorf("%s: refused", input)
			continue
		}
		got := string(d.Canonical())
		if want := byBytes(t, string(output)); maskNumbers(got) != maskNumbers(want) {
			t.Errorf("%s:\ngot  %s\nwant %s", input, got, want)
		}
		for _, text := range numbers(string(src)) {
			if !strings.Contains(got, text) {
				t.Errorf("%s: the number %s is not in %s", input, text, got)
			}
		}
	}
}

// byBytes moves the one member of the vectors that two orders put in two places: U+1F602
// is D83D DE02 in UTF-16, so RFC 8785 has it before U+FB33; in UTF-8 it comes after.
func byBytes(t *testing.T, output string) string {
	const smiley, dalet = "\"\U0001F602\":\"Smiley\"", "\"\uFB33\":\"Hebrew Letter Dalet With Dagesh\""
	if strings.Contains(output, "Smiley") && !strings.Contains(output, smiley+","+dalet) {
		t.Errorf("the vector is not the one this test knows: %s", output)
	}
	return strings.Replace(output, smiley+","+dalet, dalet+","+smiley, 1)
}

var stringOrNumber = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|-?[0-9][0-9.eE+-]*`)

func maskNumbers(text string) string {
	return stringOrNumber.ReplaceAllStringFunc(text, func(token string) string {
		if token[0] == '"' {
			return token
		}
		return "#"
	})
}

func numbers(text string) (found []string) {
	for _, token := range stringOrNumber.FindAllString(text, -1) {
		if token[0] != '"' {
			found = append(found, token)
		}
	}
	return found
}

// order is a document of the usual kind whose members are out of order.
func order(items int) string {
	var b strings.Builder
	b.WriteString(`{"order_id": "o-1", "currency": "eur", "items": [`)
	for i := range items {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, `{"sku": "AB-%d", "quantity": 2, "price": 12.50, "note": "f\u00fcr \"Sie\""}`, i)
	}
	b.WriteString("]}")
	return b.String()
}

func BenchmarkCanonical(b *testing.B) {
	for name, src := range map[string]string{
		"order-200B":  order(2),
		"order-100KB": order(1300),
		// Every level is out of order around 100 KB: moving bytes level by level would show.
		"nested-100KB": strings.Repeat(`{"b":`, 1000) + `"` + strings.Repeat("x", 100_000) + `"` + strings.Repeat(`,"a":1}`, 1000),
	} {
		b.Run(name, func(b *testing.B) {
			var d Document
			src := []byte(src)
			b.SetBytes(int64(len(src)))
			b.ReportAllocs()
			for b.Loop() {
				d.Parse(src)
				d.Canonical()
			}
		})
	}
}
