package idempotency

import (
	"bytes"
	"crypto/sha256"
	"mime/multipart"
	"net/textproto"
	"strings"
	"testing"
)

// form is a multipart body; each part is a header block, an empty line and content.
func form(boundary string, parts ...string) string {
	var b strings.Builder
	for _, part := range parts {
		b.WriteString("--" + boundary + "\r\n" + part + "\r\n")
	}
	return b.String() + "--" + boundary + "--\r\n"
}

func textPart(name, content string) string {
	return `Content-Disposition: form-data; name="` + name + "\"\r\n\r\n" + content
}

const multipartType = "multipart/form-data; boundary="

func TestFingerprintBodyOfMultipart(t *testing.T) {
	t.Parallel()
	a, b := textPart("a", "1"), textPart("b", "2")
	file := "Content-Disposition: form-data; name=\"f\"; filename=\"x.bin\"\r\nContent-Type: image/png\r\n\r\n\x00\xff\r\n\r\n"
	sameOrNot{"multipart", FingerprintBody, [][][2]string{
		{{multipartType + "x", form("x", a, b, file)}, {multipartType + "----geckoYZ", form("----geckoYZ", a, b, file)},
			{"Multipart/Form-Data; charset=utf-8; boundary=\"q:? q\"", form("q:? q", a, b, file)},
			{multipartType + strings.Repeat("z", 70), form(strings.Repeat("z", 70), a, b, file)}},
		{{multipartType + "x", form("x", b, a, file)}},
		{{multipartType + "x", form("x", a, b)}, {multipartType + "y", form("y", a, b)}},
		{{multipartType + "x", form("x", a, b, b)}},
		{{multipartType + "x", form("x", a+"2", b)}},
		{{multipartType + "x", form("x", a+"\r\n", b)}},
		{{multipartType + "x", form("x", a+"\r\n"+b)}},
		{{multipartType + "x", form("x", textPart("a", ""), b)}},
		{{multipartType + "x", form("x", textPart("A", "1"), b)}},
		{{multipartType + "x", form("x", "X: y\r\n"+a, b)}},
		{{multipartType + "x", form("x", strings.Replace(a, "\r\n\r\n", "\r\nX: y\r\n\r\n", 1), b)}},
		{{multipartType + "x", form("x", strings.Replace(a, "\r\n\r\n", "\r\n\r\nX: y", 1), b)}},
		{{multipartType + "x", form("x", "\r\n1")}, {multipartType + "y", form("y", "\r\n1")}},
		{{multipartType + "x", form("x")}, {multipartType + "y", form("y")}}, // no part, only closed
		{{multipartType + "x", "\r\n" + form("x")}, {multipartType + "y", "\r\n" + form("y")}},
		{{multipartType + "x", "pre\r\n" + form("x", a)}, {multipartType + "y", "pre\r\n" + form("y", a)}},
		{{multipartType + "x", "PRE\r\n" + form("x", a)}},
		{{multipartType + "x", form("x", a) + "post"}, {multipartType + "y", form("y", a) + "post"}},
		{{multipartType + "x", form("x", a) + "POST"}},
		{{multipartType + "x", strings.TrimSuffix(form("x", a), "\r\n")}, {multipartType + "y", strings.TrimSuffix(form("y", a), "\r\n")}},
	}}.check(t)
}

// What a parser might see in another way with another boundary counts by its bytes, so
// that a change of the boundary is a difference.
func TestFingerprintBodyOfMalformedMultipart(t *testing.T) {
	t.Parallel()
	a := textPart("a", "1")
	for name, c := range map[string]struct{ boundary, body string }{
		"empty":                          {"x", ""},
		"no delimiter":                   {"x", "text"},
		"only the boundary":              {"x", "--x"},
		"not closed":                     {"x", "--x\r\n" + a + "\r\n"},
		"cut off in a part":              {"x", "--x\r\n" + a},
		"text behind the closing":        {"x", "--x\r\n" + a + "\r\n--x--y"},
		"one hyphen":                     {"x", "--x\r\n" + a + "\r\n--x-\r\n"},
		"preamble on the delimiter line": {"x", "p" + form("x", a)},
		"LF alone":                       {"x", strings.ReplaceAll(form("x", a), "\r\n", "\n")},
		"white space behind a delimiter": {"x", "--x \r\n" + a + "\r\n--x--\r\n"},
		"no empty line":                  {"x", form("x", "Content-Disposition: form-data")},
		"nothing between two delimiters": {"x", "--x\r\n--x--\r\n"},
		"boundary inside a part":         {"x", form("x", textPart("a", "1 --x 2"))},
		"boundary at the end of a line":  {"x", form("x", textPart("a", "1 --x\r\n\r\n2"))},
		"boundary at the start of one":   {"x", form("x", "\r\n--x", a)},
		"boundary in the epilogue":       {"x", form("x", a) + "--x"},
		"boundary longer in a part":      {"x", form("x", textPart("a", "1\r\n--xy\r\n"))},
		"boundary of a byte not allowed": {"x%", form("x%", a)},
		"boundary of 71 bytes":           {strings.Repeat("x", 71), form(strings.Repeat("x", 71), a)},
		"boundary ends in space":         {"x ", form("x ", a)},
	} {
		got, err := FingerprintBody(requestOf(multipartType+`"`+c.boundary+`"`), []byte(c.body))
		if want := payload(mediaMultipart, formBytes, sha256.Sum256([]byte(c.body))); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %q does not count by its bytes", name, c.body)
		}
	}
	sameOrNot{"malformed", FingerprintBody, [][][2]string{
		{{multipartType + "x", form("x", a)}},
		{{"multipart/form-data", form("x", a)}, {multipartType + `""`, form("x", a)}, {multipartType + "z", form("x", a)},
			{"multipart/form-data; boundary=x; boundary=y", form("x", a)}},
		{{"multipart/mixed; boundary=x", form("x", a)}},
		{{"multipart/mixed; boundary=y", form("y", a)}},
		{{multipartType + "x", form("x", a)[1:]}},
	}}.check(t)
}

// What the standard library writes must count by its parts.
func TestFingerprintBodyOfMultipartWriter(t *testing.T) {
	t.Parallel()
	write := func() (contentType, body string) {
		var b bytes.Buffer
		w := multipart.NewWriter(&b) // a random boundary
		_ = w.WriteField("amount", "1200")
		f, _ := w.CreateFormFile("receipt", "r.pdf")
		_, _ = f.Write([]byte("%PDF\r\n--\r\n\r\n"))
		p, _ := w.CreatePart(textproto.MIMEHeader{"X-A": {"1", "2"}, "Content-Disposition": {`form-data; name="empty"`}})
		_, _ = p.Write(nil)
		_ = w.Close()
		return w.FormDataContentType(), b.String()
	}
	oneType, one := write()
	twoType, two := write()
	if one == two {
		t.Fatal("the boundaries are equal")
	}
	for name, f := range map[string]fingerprintFunc{"body": FingerprintBody, "JSON": FingerprintJSON, "fields": FingerprintFields("amount", "receipt")} {
		if digestOf(t, f, oneType, one) != digestOf(t, f, twoType, two) {
			t.Errorf("%s: a new boundary makes a difference", name)
		}
	}
}

func TestFingerprintFieldsOfJSON(t *testing.T) {
	t.Parallel()
	sameOrNot{"JSON fields", FingerprintFields("amount", "note", "amount"), [][][2]string{
		{{jsonType, `{"amount":1,"note":{"b":1,"a":2}}`}, {jsonType, ` {"sent":"12:01", "note":{"a":2,"b":1}, "\u0061mount":1}`}},
		{{"application/x+json", `{"amount":1,"note":{"b":1,"a":2}}`}},
		{{jsonType, `{"amount":1}`}, {jsonType, `{"amount":1,"x":{"note":2}}`}},
		{{jsonType, `{"amount":1,"note":null}`}},
		{{jsonType, `{"amount":1,"note":""}`}},
		{{jsonType, `{"amount":1,"note":[]}`}},
		{{jsonType, `{"amount":"1"}`}},
		{{jsonType, `{"amount":1.0}`}},
		{{jsonType, `{"note":1}`}},
		{{jsonType, `{"amount":2,"note":1}`}},
		{{jsonType, `{"amount":1,"note":2}`}},
		{{jsonType, `{}`}}, // from here on: as FingerprintBody
		{{jsonType, `{ }`}},
		{{jsonType, `{"amuont":1}`}},
		{{jsonType, `{"amuont":2}`}},
		{{jsonType, `{"amount":1,"Amount":1}`}},
		{{jsonType, `{"amount":1,"Amount":2}`}},
		{{jsonType, `{"AMOUNT":1,"note":1}`}},
		{{jsonType, `{"AMOUNT":2,"note":1}`}},
		{{jsonType, `{"amount":1,"amount":1}`}},
		{{jsonType, `{"amount":1,"x":1,"x":1}`}},
		{{jsonType, `{"amount":1`}},
		{{jsonType, `{"amount":1,`}},
		{{jsonType, `[{"amount":1}]`}},
		{{jsonType, `[{"amount": 1}]`}},
		{{jsonType, `"amount"`}},
		{{jsonType, ``}},
	}}.check(t)
}

func TestFingerprintFieldsOfForms(t *testing.T) {
	t.Parallel()
	const urlType = "application/x-www-form-urlencoded"
	sameOrNot{"form field without a name", FingerprintFields(""), [][][2]string{
		{{urlType, "=1&=2"}, {urlType, "&=1&a=b&&=2&"}},
		{{urlType, "=1&=2&="}},
	}}.check(t)
	sameOrNot{"form fields", FingerprintFields("item", "q"), [][][2]string{
		{{urlType, "item=a+b&item=c"}, {urlType, "t=1&%69tem=a%20b&&t=2&item=%63"}, {urlType + ";charset=utf-8", "item=a%20b&item=c&t"}},
		{{urlType, "item=c&item=a+b"}},
		{{urlType, "item=a+b"}},
		{{urlType, "item=a+b&q=c"}},
		{{urlType, "item=a+bc"}},
		{{urlType, "item=a+b&item="}, {urlType, "item=a+b&item"}},
		{{urlType, "item="}, {urlType, "Item=a&item="}, {urlType, "Item=b&item"}},
		{{urlType, "q="}},
		{{urlType, "x=1"}}, // from here on: as FingerprintBody
		{{urlType, "x=2"}},
		{{urlType, ""}},
		{{urlType, "item=a&x=%"}},
		{{urlType, "item=a&x=%z"}},
		{{urlType, "item=a;x=1"}},
		{{urlType, "item=a;x=2"}},
		{{urlType, "item=a&x=1;2"}},
		{{urlType, "item=a&x=1;3"}},
		{{urlType, `{"q":1,"x":"&item=1&"}`}},
		{{urlType, ` {"q":2,"x":"&item=1&"}`}},
	}}.check(t)
}

func TestFingerprintFieldsOfMultipart(t *testing.T) {
	t.Parallel()
	a, b, sent := textPart("a", "1"), textPart("b", "2"), textPart("sent", "12:00")
	sameOrNot{"multipart fields", FingerprintFields("b", "a"), [][][2]string{
		{{multipartType + "x", form("x", a, b)}, {multipartType + "y", form("y", a, sent, b)}, {multipartType + "x", "pre\r\n" + form("x", b, textPart("sent", "13:00"), a)}},
		{{multipartType + "x", form("x", a)}},
		{{multipartType + "x", form("x", b)}},
		{{multipartType + "x", form("x", a, a, b)}},
		{{multipartType + "x", form("x", a, textPart("a", "3"))}},
		{{multipartType + "x", form("x", textPart("a", "3"), a)}},
		{{multipartType + "x", form("x", textPart("a", ""), b)}},
		{{multipartType + "x", form("x", "X-B: 1\r\nX-A: 1\r\n"+a, b)}, {multipartType + "x", form("x", "X-A: 1\r\nx-b: 1\r\n"+a, b)}},
		{{multipartType + "x", form("x", "X-A: 1\r\nX-A: 1\r\n"+a, b)}},
		{{multipartType + "x", form("x", "Content-Transfer-Encoding: quoted-printable\r\n"+textPart("a", "=31"), b)}},
		{{multipartType + "x", form("x", "Content-Transfer-Encoding: quoted-printable\r\n"+textPart("a", "1"), b)}},
		{{multipartType + "x", form("x", sent)}, {multipartType + "y", form("y", sent)}}, // none of the fields: as FingerprintBody
		{{multipartType + "x", form("x", textPart("sent", "13:00"))}},
		{{multipartType + "x", strings.TrimSuffix(form("x", a, sent), "--x--\r\n")}},
		{{multipartType + "x", strings.TrimSuffix(form("x", a, textPart("sent", "13:00")), "--x--\r\n")}},
		{{multipartType + "x", strings.TrimSuffix(form("x", sent, a), "\r\n--x--\r\n")}},
		{{"multipart/form-data", form("x", a, sent)}},
		{{"multipart/form-data", form("x", a)}},
	}}.check(t)
}

func TestFingerprintFieldsNames(t *testing.T) {
	t.Parallel()
	const body = `{"a":1,"b":2}`
	names := []string{"b", "a", "b"}
	f := FingerprintFields(names...)
	want := digestOf(t, FingerprintFields("a", "b"), jsonType, body)
	names[1] = "c"
	if digestOf(t, f, jsonType, body) != want {
		t.Error("the order of names, or a name twice, or a change to the slice afterwards, makes a difference")
	}
	if digestOf(t, FingerprintFields("a"), jsonType, body) == digestOf(t, FingerprintFields("a", "c"), jsonType, body) {
		t.Error("one more name makes no difference")
	}
	defer func() {
		if recover() == nil {
			t.Error("FingerprintFields() did not panic")
		}
	}()
	FingerprintFields()
}
