package canonjson

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// FuzzDocument compares with encoding/json, which accepts more and forgets some, and
// with a straightforward writer of the canonical form.
func FuzzDocument(f *testing.F) {
	for _, seed := range []string{
		`{"b":{"d":1,"c":2},"a":[{"f":3,"e":4}]}`, `{"A":1,"\n":2,"\u0001":3,"\"":4,"\\":5,"a":6}`,
		`{"a":1,"\u0061":2}`, `[1.0,-0,1e5,"\ud83d\ude02","\ud800"]`, "\"\xff\"", `[[[[]]]]`, ` {"" : null } `,
		`{"😂":1,"דּ":2,"\u20ac":[true,false]}`, order(2), `{"\u001f":1,"\r":2,"\t":3,"\u000b":4}`, `"\"\\\/\b\f\n\r\t"`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		var d Document
		d.Parse([]byte(`{"used":{"b":1,"a":2},"before":true}`))
		if !d.Parse(src) {
			if unambiguous(src) {
				t.Fatalf("Parse(%q) = false", src)
			}
			return
		}
		decoded := decode(t, src)
		want := write(nil, decoded)
		got := bytes.Clone(d.Canonical())
		if !bytes.Equal(got, want) {
			t.Fatalf("%q became\n%q, want\n%q", src, got, want)
		}
		members, _ := decoded.(map[string]any)
		for name, member := range members {
			if value, ok := d.Member(name); !ok || !bytes.Equal(value, write(nil, member)) {
				t.Fatalf("%q: Member(%q) = %q, %t", src, name, value, ok)
			}
		}
		if !d.Parse(got) || !bytes.Equal(d.Canonical(), got) {
			t.Fatalf("%q is not its own canonical form", got)
		}
	})
}

func decode(t *testing.T, src []byte) (v any) {
	dec := json.NewDecoder(bytes.NewReader(src))
	dec.UseNumber()
	if err := dec.Decode(&v); err != nil {
		t.Fatalf("%q was parsed, but encoding/json says: %v", src, err)
	}
	return v
}

func write(dst []byte, v any) []byte {
	switch v := v.(type) {
	case json.Number:
		return append(dst, v...)
	case string:
		return writeString(dst, v)
	case []any:
		dst = append(dst, '[')
		for i, element := range v {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = write(dst, element)
		}
		return append(dst, ']')
	case map[string]any:
		dst = append(dst, '{')
		for i, name := range slices.Sorted(maps.Keys(v)) {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = write(append(writeString(dst, name), ':'), v[name])
		}
		return append(dst, '}')
	case bool:
		if v {
			return append(dst, "true"...)
		}
		return append(dst, "false"...)
	}
	return append(dst, "null"...)
}

func writeString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	for _, r := range s {
		switch i := strings.IndexRune("\b\t\n\f\r\"\\", r); {
		case i >= 0:
			dst = append(dst, '\\', "btnfr\"\\"[i])
		case r < 0x20:
			dst = fmt.Appendf(dst, `\u%04x`, r)
		default:
			dst = utf8.AppendRune(dst, r)
		}
	}
	return append(dst, '"')
}

// unambiguous reports whether Parse must accept src. It says no to every \ud escape, so
// pairs of surrogates are not covered from this side.
func unambiguous(src []byte) bool {
	if !json.Valid(src) || !utf8.Valid(src) || bytes.Contains(bytes.ToLower(src), []byte(`\ud`)) {
		return false
	}
	type level struct {
		names map[string]bool // nil in an array
		value bool            // the next token is a value, not a name
	}
	var levels []level
	dec := json.NewDecoder(bytes.NewReader(src))
	dec.UseNumber()
	for {
		token, err := dec.Token()
		if err != nil {
			return true
		}
		switch token {
		case json.Delim('}'), json.Delim(']'):
			levels = levels[:len(levels)-1]
			continue
		}
		if top := len(levels) - 1; top >= 0 && levels[top].names != nil {
			if !levels[top].value {
				if levels[top].names[token.(string)] {
					return false
				}
				levels[top].names[token.(string)] = true
			}
			levels[top].value = !levels[top].value
		}
		switch token {
		case json.Delim('{'):
			levels = append(levels, level{names: map[string]bool{}})
		case json.Delim('['):
			levels = append(levels, level{})
		}
		if len(levels) > maxDepth {
			return false
		}
	}
}
