package storetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/seed-2d1e5f61/idempotency"
)

var keyChecks = []check{
	{
		"KeysNeverMeet",
		"keys that differ in any byte of tenant, endpoint or value, or in where a part ends, are different keys",
		"one tenant is answered with another's response, and its own operation is never run",
		keysNeverMeet,
	},
}

func keysNeverMeet(p *probe) {
	stored := make(map[idempotency.Key]idempotency.Claim)
	for _, key := range keys() {
		if _, twice := stored[key]; twice {
			continue
		}
		c := p.claim()
		c.Key = key
		var rec idempotency.Record
		err := p.call("Reserve", func(ctx context.Context) (err error) {
			rec, err = p.store.Reserve(ctx, c)
			return err
		})
		switch {
		case err != nil && mayRefuse(key) && !errors.Is(err, idempotency.ErrClaimLost):
			continue
		case err != nil:
			p.broken("Reserve of %s says %v; want no error", show(key), err)
		case rec.State != idempotency.Acquired:
			p.broken("nobody has used %s, and Reserve says %s; want Acquired", show(key), nameOf(rec.State))
		}
		stored[key] = c
	}
	for key, c := range stored {
		p.must(complete(answer(c.Token.String())), c, "for the owner of "+show(key))
	}
	for key, c := range stored {
		p.replays(c, answer(c.Token.String()), "for "+show(key))
	}
}

func show(key idempotency.Key) string { return fmt.Sprintf("%+q", key) }

// mayRefuse reports whether key cannot come from the middleware, which has checked that
// a tenant and a value are there and that all is text.
func mayRefuse(key idempotency.Key) bool {
	all := key.Tenant + key.Endpoint + key.Value
	return key.Tenant == "" || key.Value == "" || strings.Contains(all, "\x00") ||
		!utf8.ValidString(key.Tenant) || !utf8.ValidString(key.Endpoint) || !utf8.ValidString(key.Value)
}

func keys() (keys []idempotency.Key) {
	add := func(tenant, endpoint, value string) {
		keys = append(keys, idempotency.Key{Tenant: tenant, Endpoint: endpoint, Value: value})
	}
	// Parts shifted against one another, or with whatever might be put between them.
	for _, between := range strings.Split(delimiters, "") {
		add("a"+between+"b", "c", "d")
		add("a", "b"+between+"c", "d")
		add("a", "b", "c"+between+"d")
		add("a"+between, "b", "d")
		add("a", between+"b", "d")
	}
	add("a:b:c", "", "d")
	add("a", "", "b:c:d")
	add("a", ":b:c", "d")
	add("a", "b:c:", "d")
	add("ab", "c", "d")
	add("a", "bc", "d")
	add("a", "b", "cd")
	add("abc", "", "d")
	add("a", "", "bcd")
	add("", "abcd", "")
	add("abcd", "", "")
	add("", "", "abcd")
	// Numbers that a length could be taken for.
	add("1", "1", "11")
	add("1", "11", "1")
	add("11", "1", "1")
	// What is equal to a person, a collation or a file system, in each of the parts.
	for _, part := range alike {
		add(part, "POST /", "k")
		add("t", part, "k")
		add("t", "POST /", part)
	}
	return keys
}

const delimiters = ":/|,;.-_+&=?#@%*\\\"' \t\n\x1f\x00"

var long255 = strings.Repeat("k", 254)

var alike = []string{
	"key", "Key", "KEY", " key", "key ", "key\n", "k\u00e9y", "ke\u0301y", "k\u00ffy",
	"strasse", "stra\u00dfe", "STRASSE", "i", "I", "\u0130", "\u0131", "\uff4b\uff45\uff59",
	"k\u200bey", "\u202ekey", "\ufeffkey", "\u65e5\u672c", "\u65e5\u672c\u8a9e",
	"1", "01", "1.0", "+1", "1e0", "null", "NULL", "nil", "true",
	"k%y", "k_y", "k*y", "k?y", "k[e]y", "{key}", "k%65y", `k\x65y`, "k''y", `k"y`,
	"../key", "./key", "key/", "//key",
	"\xff", "\xfe", "\ufffd", "key\x00", "key\x00\x00",
	long255 + "1", long255 + "2", long255 + long255 + "1", long255 + long255 + "2",
}
