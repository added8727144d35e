package storetest

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"

	"github.com/seed-2d1e5f61/idempotency"
)

var responseChecks = []check{
	{
		"Body",
		"a body comes back byte for byte",
		"signatures, digests and archives no longer match, and a client reads another amount",
		func(p *probe) { keeps(p, bodies()) },
	},
	{
		"Header",
		"header lines come back byte for byte, under the same names, in order, neither joined nor split",
		"a replay means something else than the first response",
		func(p *probe) { keeps(p, headers()) },
	},
	{
		"Appended",
		"the marks of Response.Appended come back",
		"a replay overwrites what outer layers have set, or repeats it",
		func(p *probe) { keeps(p, appended()) },
	},
	{
		"Fields",
		"status, Ref and Omitted come back as they were",
		"a replay has another status, or no body at all",
		func(p *probe) { keeps(p, fields()) },
	},
	{
		"NoSharedMemory",
		"what a store is given and what it returns shares no memory with what it keeps",
		"a middleware that edits one response changes the record, for everyone and in a race",
		noSharedMemory,
	},
}

// keeps records each response and reads it back, by its own token and by another.
func keeps(p *probe, responses map[string]idempotency.Response) {
	for _, name := range slices.Sorted(maps.Keys(responses)) {
		c, resp := p.claim(), responses[name]
		p.expect(c, idempotency.Acquired, "on a fresh key")
		p.must(complete(resp), c, "with "+name)
		p.replays(c, resp, "after Complete with "+name)
		rec := p.expect(c, idempotency.Completed, "for the token that completed")
		if diff := difference(rec.Response, resp); diff != "" {
			p.broken("after Complete with %s, for the same token, the recorded %s", name, diff)
		}
	}
}

func bodies() map[string]idempotency.Response {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	megabyte := make([]byte, 1<<20)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range megabyte {
		megabyte[i] = byte(rng.Uint32())
	}
	responses := make(map[string]idempotency.Response)
	for name, body := range map[string][]byte{
		"no body":                  nil,
		"an empty body":            {},
		"a body of one NUL":        {0},
		"a body of every byte":     all,
		"a body of invalid UTF-8":  []byte("caf\xe9 \xff\xfe \xed\xa0\x80"),
		"a body of 1 MiB":          megabyte,
		"space around a body":      []byte(" \t\r\n{}\r\n\n "),
		"a body that is JSON null": []byte("null"),
		"JSON of unusual form":     []byte("{ \"b\":1.00, \"a\":9007199254740993, \"a\":1e2,\n\"c\":\"\\u00e9<>&\" }\n"),
		"a body of backslashes":    []byte(`\x00 \\ \' %00 %s $1 ? {{.}} ${x}`),
	} {
		responses[name] = idempotency.Response{Status: 200, Body: body}
	}
	return responses
}

func headers() map[string]idempotency.Response {
	many := make(http.Header)
	for i := range 50 {
		many.Set(fmt.Sprintf("X-Header-%d", i), strings.Repeat("v", i*10))
	}
	responses := make(map[string]idempotency.Response)
	for name, header := range map[string]http.Header{
		"no header":             nil,
		"one line":              {"Content-Type": {"application/json; charset=utf-8"}},
		"lines in order":        {"Link": {"</c>; rel=next", "</a>", "</b>", "</a>"}},
		"commas and quotes":     {"Link": {`</a>, </b>`, `"c, d"`, `e\"f`}, "Etag": {`W/"1,2"`}},
		"empty values":          {"X-Empty": {""}, "X-More": {"", "a", ""}},
		"a name without values": {"Content-Type": {}, "X-After": {"a"}},
		"a name with nil":       {"Content-Type": nil},
		"names that differ by case": {
			"etag": {"a"}, "ETag": {"b"}, "Etag": {"c"}, "x-lower-case": {"d"}},
		"bytes beyond ASCII": {"Content-Disposition": {"attachment; filename=\"r\xe9sum\xe9\"", "日本\x00\xff"}},
		"space around":       {"X-Space": {" a ", "\tb\t", " "}},
		"many lines":         many,
	} {
		responses[name] = idempotency.Response{Status: 200, Header: header, Body: []byte("body")}
	}
	return responses
}

func appended() map[string]idempotency.Response {
	header := http.Header{"Vary": {"Accept", "Origin"}, "Link": {"</a>"}, "Content-Type": {"text/plain"}}
	responses := make(map[string]idempotency.Response)
	for name, marks := range map[string][]string{
		"no marks":    nil,
		"one mark":    {"Vary"},
		"two marks":   {"Link", "Vary"},
		"three marks": {"Content-Type", "Link", "Vary"},
	} {
		responses[name] = idempotency.Response{Status: 200, Header: header, Appended: marks}
	}
	return responses
}

func fields() map[string]idempotency.Response {
	return map[string]idempotency.Response{
		"the lowest status":  {Status: 200},
		"a redirect":         {Status: 303, Header: http.Header{"Location": {"/a"}}},
		"the highest status": {Status: 999, Body: []byte("body")},
		"a reference":        {Status: 201, Ref: "charges/ch_1"},
		"an odd reference":   {Status: 201, Ref: " \x00\xff'\"日本\n"},
		"a long reference":   {Status: 201, Ref: strings.Repeat("r", 5000)},
		"an omitted body":    {Status: 201, Header: http.Header{"Location": {"/a"}}, Omitted: true},
		"everything": {
			Status: 202, Header: http.Header{"Vary": {"a"}}, Appended: []string{"Vary"},
			Body: []byte("b"), Ref: "r", Omitted: true,
		},
	}
}

// difference says how got differs from want, or nothing. A nil slice or map is the same
// as an empty one.
func difference(got, want idempotency.Response) string {
	switch {
	case got.Status != want.Status:
		return fmt.Sprintf("status is %d; want %d", got.Status, want.Status)
	case !bytes.Equal(got.Body, want.Body):
		return fmt.Sprintf("body is %s; want %s", excerpt(got.Body), excerpt(want.Body))
	case !maps.EqualFunc(got.Header, want.Header, slices.Equal[[]string]):
		return fmt.Sprintf("header is %q; want %q", got.Header, want.Header)
	case !sameNames(got.Appended, want.Appended):
		return fmt.Sprintf("Appended is %q; want %q", got.Appended, want.Appended)
	case got.Ref != want.Ref:
		return fmt.Sprintf("Ref is %q; want %q", got.Ref, want.Ref)
	case got.Omitted != want.Omitted:
		return fmt.Sprintf("Omitted is %t; want %t", got.Omitted, want.Omitted)
	}
	return ""
}

func sameNames(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

func excerpt(body []byte) string {
	const most = 60
	if len(body) <= most {
		return fmt.Sprintf("%q", body)
	}
	return fmt.Sprintf("%q… (%d bytes)", body[:most], len(body))
}

func noSharedMemory(p *probe) {
	want := func() idempotency.Response {
		return idempotency.Response{
			Status:   200,
			Header:   http.Header{"Vary": {"Accept", "Origin"}, "Link": {"</a>"}, "X-Last": {"1"}},
			Appended: []string{"Link", "Vary"},
			Body:     []byte("the body of the first response"),
		}
	}
	c, given := p.claim(), want()
	p.expect(c, idempotency.Acquired, "on a fresh key")
	p.must(complete(given), c, "for the owner")
	scribble(given)
	p.replays(c, want(), "after the response given to Complete was changed")

	mine, theirs := p.reserve(retry(c)).Response, p.reserve(retry(c)).Response
	scribble(mine)
	if diff := difference(theirs, want()); diff != "" {
		p.broken("after one caller changed the response that Reserve gave it, another's %s", diff)
	}
	p.replays(c, want(), "after a caller changed the response that Reserve gave it")

	// Lines of one name may lie before another's in the same array.
	for name := range theirs.Header {
		theirs.Header[name] = append(theirs.Header[name], "new")
	}
	grown := want()
	for name := range grown.Header {
		grown.Header[name] = append(grown.Header[name], "new")
	}
	if diff := difference(theirs, grown); diff != "" {
		p.broken("after a line was added to each name of a response, its %s", diff)
	}
}

// scribble changes all that can be changed in resp.
func scribble(resp idempotency.Response) {
	clear(resp.Body)
	clear(resp.Appended)
	for _, values := range resp.Header {
		clear(values)
	}
	delete(resp.Header, "Vary")
	resp.Header["X-New"] = []string{"new"}
}
