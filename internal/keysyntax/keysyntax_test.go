package keysyntax

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
)

type keyCase struct {
	Name            string
	Line            string
	Key             string // "": refused
	RefusedIfStrict bool
	Error           string // a word of the error's text
}

func readJSON[T any](t testing.TB, path string) (v T) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return v
}

func TestParseTable(t *testing.T) {
	t.Parallel()
	for _, c := range readJSON[[]keyCase](t, "../../testdata/keys.json") {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			got, err := Parse(c.Line, false)
			if got != c.Key || (err != nil) != (c.Key == "") {
				t.Errorf("Parse(%q, false) = %q, %v, want %q", c.Line, got, err, c.Key)
			}
			if err != nil && !strings.Contains(err.Error(), c.Error) {
				t.Errorf("Parse(%q, false): error %q does not mention %q", c.Line, err, c.Error)
			}
			strict, strictErr := Parse(c.Line, true)
			switch {
			case c.RefusedIfStrict && strictErr != errUnquoted:
				t.Errorf("Parse(%q, true) = %q, %v, want errUnquoted", c.Line, strict, strictErr)
			case !c.RefusedIfStrict && (strict != c.Key || (strictErr != nil) != (c.Key == "")):
				t.Errorf("Parse(%q, true) = %q, %v, want %q", c.Line, strict, strictErr, c.Key)
			}
		})
	}
}

func TestParseEveryBareByte(t *testing.T) {
	t.Parallel()
	for b := range 256 {
		line := "a" + string([]byte{byte(b)}) + "z"
		want := b > 0x20 && b < 0x7f && b != '"' && b != ','
		key, err := Parse(line, false)
		if (err == nil) != want || want && key != line {
			t.Errorf("Parse(%q, false) = %q, %v; valid: %t", line, key, err, want)
		}
	}
}

func TestParseLength(t *testing.T) {
	t.Parallel()
	longest := strings.Repeat("k", 255)
	escapes := strings.Repeat(`\"`, 255) // 510 bytes on the wire, 255 in the key
	cases := []struct {
		name, line string
		want       string
	}{
		{"bare at the limit", longest, longest},
		{"bare over it", longest + "k", ""},
		{"quoted at the limit", `"` + longest + `"`, longest},
		{"quoted over it", `"` + longest + `k"`, ""},
		{"escapes count once", `"` + escapes + `"`, strings.Repeat(`"`, 255)},
		{"escapes over it", `"` + escapes + `k"`, ""},
		{"parameters do not count", `"k";a="` + longest + `"`, "k"},
		{"nor does space around", strings.Repeat(" ", 300) + "k", "k"},
	}
	for _, c := range cases {
		got, err := Parse(c.line, false)
		if got != c.want || c.want == "" && err != errTooLong {
			t.Errorf("%s: got %d bytes, %v, want %d bytes", c.name, len(got), err, len(c.want))
		}
	}
}

// A key may be personal data, so no refusal may show a part of what it refused.
func TestErrorsHideTheKey(t *testing.T) {
	t.Parallel()
	const secret = "SeCrEt7"
	for _, line := range []string{
		secret + " " + secret, `"` + secret, `"` + secret + `"` + secret, `"x";a=` + secret + ` b`,
		strings.Repeat(secret, 40), `"` + strings.Repeat(secret, 40) + `"`, secret,
	} {
		_, err := Parse(line, true)
		if err == nil {
			t.Errorf("Parse(%q, true) was accepted", line)
		} else if strings.Contains(err.Error(), secret) {
			t.Errorf("Parse(%q, true): error shows the key: %v", line, err)
		}
	}
}

func TestParseDoesNotAllocate(t *testing.T) {
	for _, line := range []string{
		"8e03978e-40d5-43dd-bc93-6894a57f9324", `"8e03978e-40d5-43dd-bc93-6894a57f9324"`,
		` "k"; a=1;b="x";c=tok;d=:aGVsbG8=:;e=@1 `, "not a key", "",
	} {
		if n := testing.AllocsPerRun(100, func() { _, _ = Parse(line, false) }); n != 0 {
			t.Errorf("Parse(%q, false): %v allocations, want 0", line, n)
		}
	}
}

func TestQuote(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]string{
		"k":     `"k"`,
		"":      `""`,
		" a,b ": `" a,b "`,
		`a"b\c`: `"a\"b\\c"`,
		`\"`:    `"\\\""`,
	} {
		if got, ok := Quote(key); got != want || !ok {
			t.Errorf("Quote(%q) = %q, %t, want %q", key, got, ok, want)
		}
	}
	for _, key := range []string{"a\tb", "a\nb", "\x00", "\x7f", "é", "\xff", "k\r\nSet-Cookie: a=b"} {
		if got, ok := Quote(key); ok || got != "" {
			t.Errorf("Quote(%q) = %q, %t, want it refused", key, got, ok)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, c := range readJSON[[]keyCase](f, "../../testdata/keys.json") {
		f.Add(c.Line)
	}
	f.Fuzz(func(t *testing.T, line string) {
		key, err := Parse(line, false)
		if err != nil && key != "" {
			t.Fatalf("Parse(%q, false) gave both %q and %v", line, key, err)
		}
		if err == nil && (len(key) < 1 || len(key) > MaxLength) {
			t.Fatalf("Parse(%q, false) gave %d bytes", line, len(key))
		}
		strict, strictErr := Parse(line, true)
		if strictErr == nil && (err != nil || strict != key) {
			t.Fatalf("Parse(%q): %q if strict, else %q, %v", line, strict, key, err)
		}
		checkRoundTrip(t, line)
		if err == nil {
			checkRoundTrip(t, key)
		}
	})
}

// checkRoundTrip checks that a key goes through its quoted form unchanged.
func checkRoundTrip(t *testing.T, key string) {
	quoted, ok := Quote(key)
	printable := strings.Trim(key, " !\"#$%&'()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstuvwxyz{|}~") == ""
	if ok != printable {
		t.Fatalf("Quote(%q) = %q, %t", key, quoted, ok)
	}
	if !ok || key == "" || len(key) > MaxLength {
		return
	}
	if got, err := Parse(quoted, true); got != key || err != nil {
		t.Fatalf("Parse(Quote(%q)) = %q, %v", key, got, err)
	}
}

func BenchmarkParse(b *testing.B) {
	for name, line := range map[string]string{
		"bare":   "8e03978e-40d5-43dd-bc93-6894a57f9324",
		"quoted": `"8e03978e-40d5-43dd-bc93-6894a57f9324"`,
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, _ = Parse(line, false)
			}
		})
	}
}
