package keysyntax

import (
	"strings"
	"unicode/utf8"
)

// What follows parses structured fields as RFC 9651, section 4.2 has it. Each function
// takes the input from where its subject begins and returns what is left behind it.

// parseString reads the String that s begins with; s[0] is its opening quote. Without
// escapes, value is a part of s.
func parseString(s string) (value, rest string, ok bool) {
	escaped := false
	for i := 1; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"':
			value = s[1:i]
			if escaped {
				value = unescape(value)
			}
			return value, s[i+1:], true
		case c == '\\':
			i++
			if i == len(s) || s[i] != '"' && s[i] != '\\' {
				return "", "", false
			}
			escaped = true
		case !isPrintable(c):
			return "", "", false
		}
	}
	return "", "", false
}

func unescape(s string) string {
	unescaped := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' {
			i++
		}
		unescaped = append(unescaped, s[i])
	}
	return string(unescaped)
}

// validParameters reports whether s is parameters and nothing else. An empty s is.
func validParameters(s string) bool {
	for s != "" {
		if s[0] != ';' {
			return false
		}
		name := strings.TrimLeft(s[1:], " ")
		if name == "" || !isLower(name[0]) && name[0] != '*' {
			return false
		}
		s = skip(name, isNameByte)
		if strings.HasPrefix(s, "=") {
			var ok bool
			if s, ok = skipBareItem(s[1:]); !ok {
				return false
			}
		}
	}
	return true
}

func skipBareItem(s string) (rest string, ok bool) {
	if s == "" {
		return "", false
	}
	switch c := s[0]; {
	case c == '"':
		_, rest, ok = parseString(s)
		return rest, ok
	case isDigit(c) || c == '-':
		rest, _, ok = skipNumber(s)
		return rest, ok
	case isLower(c|0x20) || c == '*':
		return skip(s, isTokenByte), true
	case c == ':':
		return skipByteSequence(s)
	case c == '?':
		return s[min(2, len(s)):], strings.HasPrefix(s, "?0") || strings.HasPrefix(s, "?1")
	case c == '@':
		rest, decimal, ok := skipNumber(s[1:])
		return rest, ok && !decimal
	case c == '%':
		return skipDisplayString(s)
	}
	return "", false
}

// skipNumber reads an Integer of up to 15 digits, or a Decimal of up to 12 and 3.
func skipNumber(s string) (rest string, decimal, ok bool) {
	s = strings.TrimPrefix(s, "-")
	rest = skip(s, isDigit)
	whole := len(s) - len(rest)
	if !strings.HasPrefix(rest, ".") {
		return rest, false, 1 <= whole && whole <= 15
	}
	fraction := rest[1:]
	rest = skip(fraction, isDigit)
	places := len(fraction) - len(rest)
	return rest, true, 1 <= whole && whole <= 12 && 1 <= places && places <= 3
}

// skipByteSequence reads base64 between colons. Padding may be missing and its bits
// may be set, as the specification advises parsers to allow.
func skipByteSequence(s string) (rest string, ok bool) {
	data, rest, ok := strings.Cut(s[1:], ":")
	if !ok {
		return "", false
	}
	padding := skip(data, isBase64Byte)
	tail := (len(data) - len(padding)) % 4 // digits in an unfinished group of four
	switch padding {
	case "":
		return rest, tail != 1
	case "=":
		return rest, tail >= 2
	case "==":
		return rest, tail == 2
	}
	return "", false
}

// skipDisplayString reads Unicode text whose bytes outside ASCII are escaped as %xx.
func skipDisplayString(s string) (rest string, ok bool) {
	if !strings.HasPrefix(s, `%"`) {
		return "", false
	}
	var text []byte
	for i := 2; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"':
			return s[i+1:], utf8.Valid(text)
		case c == '%':
			if i+2 >= len(s) || !isLowerHex(s[i+1]) || !isLowerHex(s[i+2]) {
				return "", false
			}
			text = append(text, unhex(s[i+1])<<4|unhex(s[i+2]))
			i += 2
		case !isPrintable(c):
			return "", false
		default:
			text = append(text, c)
		}
	}
	return "", false
}

// skip returns s from its first byte that is not of the class.
func skip(s string, class func(byte) bool) string {
	i := 0
	for i < len(s) && class(s[i]) {
		i++
	}
	return s[i:]
}

func isPrintable(c byte) bool { return 0x20 <= c && c <= 0x7e }
func isDigit(c byte) bool     { return '0' <= c && c <= '9' }
func isLower(c byte) bool     { return 'a' <= c && c <= 'z' }
func isLowerHex(c byte) bool  { return isDigit(c) || 'a' <= c && c <= 'f' }

func isNameByte(c byte) bool {
	return isLower(c) || isDigit(c) || strings.IndexByte("_-.*", c) >= 0
}

func isTokenByte(c byte) bool {
	return isLower(c|0x20) || isDigit(c) || strings.IndexByte("!#$%&'*+-.^_`|~:/", c) >= 0
}

func isBase64Byte(c byte) bool {
	return isLower(c|0x20) || isDigit(c) || c == '+' || c == '/'
}

func unhex(c byte) byte {
	if isDigit(c) {
		return c - '0'
	}
	return c - 'a' + 10
}
