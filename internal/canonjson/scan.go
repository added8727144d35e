package canonjson

import (
	"bytes"
	"unicode/utf16"
	"unicode/utf8"
)

// maxDepth is how many objects and arrays may lie in one another. It bounds the stack.
// Changing it would change fingerprints that are on record.
const maxDepth = 1000

// The methods below take one part of the grammar each from src to text. They return
// false at the first fault, and the document is given up.

// value is inside depth objects and arrays.
func (d *Document) value(depth int) bool {
	switch d.token() {
	case '{':
		return depth < maxDepth && d.object(depth)
	case '[':
		return depth < maxDepth && d.array(depth)
	case '"':
		return d.string()
	case 't':
		return d.literal("true")
	case 'f':
		return d.literal("false")
	case 'n':
		return d.literal("null")
	}
	return d.number()
}

func (d *Document) object(depth int) bool {
	o := object{start: len(d.text), before: len(d.objects)}
	first := len(d.open)
	d.take()
	if d.token() == '}' {
		d.take()
		return d.closed(o, first, depth)
	}
	for {
		m := member{start: len(d.text)}
		if d.token() != '"' || !d.string() {
			return false
		}
		m.nameEnd = len(d.text)
		if d.token() != ':' {
			return false
		}
		d.take()
		if !d.value(depth + 1) {
			return false
		}
		m.end, m.objects = len(d.text), len(d.objects)
		d.open = append(d.open, m)
		switch d.token() {
		case ',':
			d.take()
		case '}':
			d.take()
			return d.closed(o, first, depth)
		default:
			return false
		}
	}
}

func (d *Document) array(depth int) bool {
	d.take()
	if d.token() == ']' {
		d.take()
		return true
	}
	for d.value(depth + 1) {
		switch d.token() {
		case ',':
			d.take()
		case ']':
			d.take()
			return true
		default:
			return false
		}
	}
	return false
}

func (d *Document) literal(word string) bool {
	if !bytes.HasPrefix(d.src[d.pos:], []byte(word)) {
		return false
	}
	d.pos += len(word)
	d.text = append(d.text, word...)
	return true
}

func (d *Document) number() bool {
	start := d.pos
	if d.peek() == '-' {
		d.pos++
	}
	if d.peek() == '0' {
		d.pos++
	} else if !d.digits() {
		return false
	}
	if d.peek() == '.' {
		d.pos++
		if !d.digits() {
			return false
		}
	}
	if d.peek()|0x20 == 'e' {
		d.pos++
		if c := d.peek(); c == '+' || c == '-' {
			d.pos++
		}
		if !d.digits() {
			return false
		}
	}
	d.text = append(d.text, d.src[start:d.pos]...)
	return true
}

func (d *Document) digits() bool {
	start := d.pos
	for c := d.peek(); '0' <= c && c <= '9'; c = d.peek() {
		d.pos++
	}
	return d.pos > start
}

func (d *Document) string() bool {
	d.take()
	for {
		run, seen := d.src[d.pos:], byte(0)
		for i, c := range run {
			if c == '"' || c == '\\' || c < 0x20 {
				run = run[:i]
				break
			}
			seen |= c
		}
		if seen >= utf8.RuneSelf && !utf8.Valid(run) {
			return false
		}
		d.text = append(d.text, run...)
		d.pos += len(run)
		switch d.peek() {
		case '"':
			d.take()
			return true
		case '\\':
			if !d.escape() {
				return false
			}
		default:
			return false
		}
	}
}

func (d *Document) escape() bool {
	d.pos++
	c := d.peek()
	d.pos++
	switch c {
	case '"', '\\', 'b', 'f', 'n', 'r', 't':
		d.text = append(d.text, '\\', c)
	case '/':
		d.text = append(d.text, c)
	case 'u':
		r, ok := d.codePoint()
		d.text = appendRune(d.text, r)
		return ok
	default:
		return false
	}
	return true
}

// codePoint reads what follows the u of an escape, and the escape behind it if the two
// are a surrogate pair. Half a pair is no character: decoders put U+FFFD in its place,
// which would make different documents equal.
func (d *Document) codePoint() (rune, bool) {
	r, ok := d.codeUnit()
	if !ok || !utf16.IsSurrogate(r) {
		return r, ok
	}
	if !bytes.HasPrefix(d.src[d.pos:], []byte(`\u`)) {
		return 0, false
	}
	d.pos += len(`\u`)
	low, ok := d.codeUnit()
	r = utf16.DecodeRune(r, low)
	return r, ok && r != utf8.RuneError
}

func (d *Document) codeUnit() (rune, bool) {
	var r rune
	for range 4 {
		c := d.peek()
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c|0x20 && c|0x20 <= 'f':
			c = c | 0x20 - 'a' + 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
		d.pos++
	}
	return r, true
}

// token passes over white space and returns the byte there.
func (d *Document) token() byte {
	for {
		switch c := d.peek(); c {
		case ' ', '\t', '\n', '\r':
			d.pos++
		default:
			return c
		}
	}
}

// peek returns the byte at hand. The end looks like NUL, which is valid nowhere.
func (d *Document) peek() byte {
	if d.pos < len(d.src) {
		return d.src[d.pos]
	}
	return 0
}

// take moves the byte at hand to text.
func (d *Document) take() {
	d.text = append(d.text, d.src[d.pos])
	d.pos++
}
