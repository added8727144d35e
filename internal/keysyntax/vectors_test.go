package keysyntax

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The structured-field test cases of the HTTP working group, from a copy outside this
// repository.
func vectors(t *testing.T, name string) string {
	t.Helper()
	dir := os.Getenv("IDEMPOTENCY_VECTORS")
	if dir == "" {
		t.Skip("IDEMPOTENCY_VECTORS is not set: third-party vectors are not checked")
	}
	return filepath.Join(dir, "sf", name)
}

// itemCase is a test case for an Item with the answer to "is it a String?".
type itemCase struct {
	Name    string
	Raw     []string
	Accept  bool
	Why     string // "syntax": no Item at all
	CanFail bool   `json:"can_fail"`
	Value   string
}

func itemCases(t *testing.T) []itemCase {
	t.Helper()
	all := readJSON[[]itemCase](t, vectors(t, "idemkey-oracle.json"))
	var single []itemCase
	for _, c := range all {
		if len(c.Raw) == 1 { // a key over several lines is refused before it is parsed
			single = append(single, c)
		}
	}
	if len(single) < 800 {
		t.Fatalf("only %d cases", len(single))
	}
	return single
}

func TestVectorsDecideStrict(t *testing.T) {
	t.Parallel()
	for _, c := range itemCases(t) {
		want, accept := c.Value, c.Accept
		if want == "" || len(want) > MaxLength {
			want, accept = "", false
		}
		got, err := Parse(c.Raw[0], true)
		if got != want || (err == nil) != accept {
			t.Errorf("%s: Parse(%q, true) = %q, %v, want %q, accepted: %t",
				c.Name, c.Raw[0], got, err, want, accept)
		}
		if c.Accept {
			quoted, ok := Quote(c.Value)
			back, _, valid := parseString(quoted)
			if !ok || !valid || back != c.Value {
				t.Errorf("%s: Quote(%q) = %q, %t, read back as %q", c.Name, c.Value, quoted, ok, back)
			}
		}
	}
}

// Every Item is also a parameter's value, valid or not as the case says. Cases about
// space around the Item are left out: it means something else in this place.
func TestVectorsAsParameter(t *testing.T) {
	t.Parallel()
	for _, c := range itemCases(t) {
		raw := c.Raw[0]
		if strings.Trim(raw, " \t") != raw {
			continue
		}
		valid := c.Why != "syntax"
		for _, strict := range []bool{true, false} {
			got, err := Parse(`"k";p=`+raw, strict)
			if (err == nil) != valid || valid && got != "k" {
				t.Errorf("%s: with parameter %q: %q, %v, want valid: %t", c.Name, raw, got, err, valid)
			}
		}
	}
}

// The cases for names of parameters are lists of one token; here a key is in its place.
func TestVectorsParameterNames(t *testing.T) {
	t.Parallel()
	type listCase struct {
		Name       string
		Raw        []string
		HeaderType string `json:"header_type"`
		MustFail   bool   `json:"must_fail"`
		Expected   json.RawMessage
	}
	checked := 0
	for _, c := range readJSON[[]listCase](t, vectors(t, "key-generated.json")) {
		parameters, ok := strings.CutPrefix(c.Raw[0], "foo;")
		// In a list a comma may end the item, and then the parameters are fine.
		if c.HeaderType != "list" || !ok || strings.Contains(parameters, ",") {
			continue
		}
		checked++
		if got, err := Parse(`"k";`+parameters, true); (err != nil) != c.MustFail {
			t.Errorf("%s: with parameters %q: %q, %v, must fail: %t", c.Name, parameters, got, err, c.MustFail)
		}
	}
	if checked < 250 {
		t.Errorf("only %d cases", checked)
	}
}

func TestVectorsQuote(t *testing.T) {
	t.Parallel()
	type serialisation struct {
		Name     string
		Expected []json.RawMessage
		MustFail bool `json:"must_fail"`
	}
	for _, c := range readJSON[[]serialisation](t, vectors(t, "serialisation-tests/string-generated.json")) {
		var value string
		if err := json.Unmarshal(c.Expected[0], &value); err != nil {
			t.Fatal(err)
		}
		if got, ok := Quote(value); ok == c.MustFail {
			t.Errorf("%s: Quote(%q) = %q, %t", c.Name, value, got, ok)
		}
	}
}
