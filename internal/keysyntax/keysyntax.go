// Package keysyntax reads and writes the value of an Idempotency-Key field.
//
// draft-ietf-httpapi-idempotency-key-header makes the value a String of RFC 9651, in
// quotes. Most clients send it bare, so that form is read too unless the caller is
// strict.
package keysyntax

import (
	"errors"
	"strings"
)

// MaxLength is the longest key in bytes, without quotes and escapes.
const MaxLength = 255

// The texts are fixed: a key may be personal data, and errors are logged and sent.
var (
	errEmpty      = errors.New("key is empty")
	errTooLong    = errors.New("key is longer than 255 bytes")
	errUnquoted   = errors.New("key is not in double quotes")
	errBare       = errors.New("key without quotes may hold visible ASCII only, no quote and no comma")
	errString     = errors.New("quoted key is not a valid structured-field String")
	errParameters = errors.New("quoted key is followed by something other than valid parameters")
)

// Parse returns the key in one field line. Space and tab around it are dropped, as
// HTTP/1 does and HTTP/2 does not. A quoted key must be a structured-field String
// (RFC 9651, section 3.3.3); parameters behind it must be valid and have no meaning. A
// key without quotes is 0x21 to 0x7E except for the quote and the comma, which would
// leave it open where one value ends and another begins; strict refuses this form. The
// two forms of one key give the same result.
func Parse(line string, strict bool) (string, error) {
	key := strings.Trim(line, " \t")
	switch {
	case key == "":
		return "", errEmpty
	case key[0] == '"':
		value, rest, ok := parseString(key)
		if !ok {
			return "", errString
		}
		if !validParameters(rest) {
			return "", errParameters
		}
		key = value
	case strict:
		return "", errUnquoted
	case !isBare(key):
		return "", errBare
	}
	if key == "" {
		return "", errEmpty
	}
	if len(key) > MaxLength {
		return "", errTooLong
	}
	return key, nil
}

func isBare(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < 0x21 || c > 0x7e || c == '"' || c == ',' {
			return false
		}
	}
	return true
}

var escaper = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

// Quote returns key as a structured-field String, or false if it has a byte outside
// 0x20 to 0x7E, which such a String cannot hold. It sets no limit on the length.
func Quote(key string) (string, bool) {
	for i := range len(key) {
		if !isPrintable(key[i]) {
			return "", false
		}
	}
	return `"` + escaper.Replace(key) + `"`, true
}
