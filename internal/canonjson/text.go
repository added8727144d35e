package canonjson

import (
	"strings"
	"unicode/utf8"
)

// In canonical text a character has one form: these escapes for the characters that
// have one, \u00xx in lower case for other control characters, UTF-8 for the rest.
const (
	escapable = "\b\t\n\f\r\"\\"
	escapes   = "btnfr\"\\"
	hexDigits = "0123456789abcdef"
)

// appendRune appends the form of a character inside a string.
func appendRune(dst []byte, r rune) []byte {
	if r >= 0x20 && r != '"' && r != '\\' {
		return utf8.AppendRune(dst, r)
	}
	if i := strings.IndexByte(escapable, byte(r)); i >= 0 {
		return append(dst, '\\', escapes[i])
	}
	return append(dst, '\\', 'u', '0', '0', hexDigits[r>>4], hexDigits[r&0xf])
}

// quote returns the form of a string. Text that is not UTF-8 stays what it is and so is
// unlike all that a document can contain.
func quote(s string) []byte {
	quoted := append(make([]byte, 0, len(s)+len(`""`)), '"')
	for i := range len(s) {
		if s[i] < utf8.RuneSelf {
			quoted = appendRune(quoted, rune(s[i]))
		} else {
			quoted = append(quoted, s[i])
		}
	}
	return append(quoted, '"')
}

// firstByte returns the first byte of what canonical text stands for, and the length of
// its form.
func firstByte(text []byte) (c byte, size int) {
	switch {
	case text[0] != '\\':
		return text[0], 1
	case text[1] == 'u':
		high, low := strings.IndexByte(hexDigits, text[4]), strings.IndexByte(hexDigits, text[5])
		return byte(high<<4 | low), 6
	}
	return escapable[strings.IndexByte(escapes, text[1])], 2
}
