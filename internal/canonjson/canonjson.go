// Package canonjson gives JSON documents that mean the same one form.
//
// The form is that of RFC 8785 with two differences. A number keeps its text, because
// 9007199254740993 and 9007199254740992 are different amounts though they are one
// float64. Members are sorted by the bytes of their names' UTF-8, where RFC 8785 sorts
// by UTF-16 code units; the two differ only between U+E000 to U+FFFF and what lies
// above. Either order would do: it must merely be fixed.
package canonjson

import (
	"bytes"
	"cmp"
	"slices"
)

// Document is one parsed document. Its zero value is ready for Parse, and parsing the
// next document reuses its memory.
//
// Parsing writes the canonical text but for the order of the members, and notes where
// the objects lie whose members are out of order. Putting those in order is a second
// pass, so that no byte is moved once for each level of nesting.
type Document struct {
	src []byte // only while parsing
	pos int

	text    []byte
	open    []member // of the objects that are not closed yet
	root    []member // of the outermost value, if it is an object
	objects []object // those out of order; an inner one stands before its outer one
	members []member // of objects, sorted
	out     []byte   // what Canonical and Member have put in order
}

// member lies at text[start:end]; its name with the quotes ends at nameEnd, and a colon
// follows.
type member struct {
	start, nameEnd, end int

	objects int // how many of Document.objects end where the member ends or before
}

// object lies at text[start:end], and its members in order are count elements of
// Document.members from first.
type object struct {
	start, end   int
	first, count int

	before int // how many of Document.objects end before this one starts
}

// Parse reads src and reports whether it is a document whose form is unambiguous: valid
// JSON in valid UTF-8 (RFC 8259) that repeats no name within an object, has no escape
// of half a surrogate pair, and is not nested deeper than 1000 levels. The document
// does not refer to src afterwards. If Parse returns false, nothing else may be called
// before the next Parse.
func (d *Document) Parse(src []byte) bool {
	*d = Document{
		src:     src,
		text:    slices.Grow(d.text[:0], len(src)), // the canonical text is never longer
		open:    d.open[:0],
		objects: d.objects[:0],
		members: d.members[:0],
		out:     d.out[:0],
	}
	ok := d.value(0)
	d.token()
	ok = ok && d.pos == len(src)
	d.src = nil
	return ok
}

// Canonical returns the canonical text, which is valid until the next Parse.
func (d *Document) Canonical() []byte {
	return d.inOrder(0, len(d.text), len(d.objects))
}

// Member returns the canonical text of the value that name has in the outermost object,
// or false if there is no such object or member. It is valid until the next Parse.
func (d *Document) Member(name string) ([]byte, bool) {
	quoted := quote(name)
	for _, m := range d.root {
		if bytes.Equal(d.text[m.start:m.nameEnd], quoted) {
			return d.inOrder(m.nameEnd+len(":"), m.end, m.objects), true
		}
	}
	return nil, false
}

// HasVariant reports whether the outermost object has a member whose name differs from
// name by case alone.
func (d *Document) HasVariant(name string) bool {
	quoted := quote(name) // escapes are in lower case everywhere
	return slices.ContainsFunc(d.root, func(m member) bool {
		text := d.text[m.start:m.nameEnd]
		return bytes.EqualFold(text, quoted) && !bytes.Equal(text, quoted)
	})
}

// inOrder returns text[from:to] with all members in order. objects is how many objects
// end at to or before.
func (d *Document) inOrder(from, to, objects int) []byte {
	if objects == 0 || d.objects[objects-1].end <= from {
		return d.text[from:to]
	}
	start := len(d.out)
	d.out = slices.Grow(d.out, to-from)[:start+to-from]
	d.place(d.out[start:], from, to, objects)
	return d.out[start:]
}

// place writes text[from:to], its members in order, to the end of dst and returns what
// is free before it. It works from back to front because that is the way in which
// objects leads from an object to what precedes it, past all that lies inside.
func (d *Document) place(dst []byte, from, to, objects int) []byte {
	for objects > 0 && d.objects[objects-1].end > from {
		o := d.objects[objects-1]
		dst = prepend(dst, d.text[o.end-len("}"):to])
		for i := o.first + o.count - 1; i >= o.first; i-- {
			m := d.members[i]
			dst = d.place(dst, m.start, m.end, m.objects)
			if i > o.first {
				dst = prepend(dst, comma)
			}
		}
		to, objects = o.start+len("{"), o.before
	}
	return prepend(dst, d.text[from:to])
}

var comma = []byte(",")

func prepend(dst, part []byte) []byte {
	free := len(dst) - len(part)
	copy(dst[free:], part)
	return dst[:free]
}

// closed takes note of the object o, whose members are open[first:]. It returns false
// if they repeat a name.
func (d *Document) closed(o object, first, depth int) bool {
	members := d.open[first:]
	if !d.ascending(members) {
		slices.SortFunc(members, d.compare)
		if !d.ascending(members) {
			return false
		}
		o.end, o.first, o.count = len(d.text), len(d.members), len(members)
		d.members = append(d.members, members...)
		d.objects = append(d.objects, o)
	}
	if depth == 0 {
		d.root = members // open is done with, so its memory may be kept
	}
	d.open = d.open[:first]
	return true
}

func (d *Document) ascending(members []member) bool {
	for i := 1; i < len(members); i++ {
		if d.compare(members[i-1], members[i]) >= 0 {
			return false
		}
	}
	return true
}

// compare orders two members by their names as they are without escapes. Up to the
// first difference the two have the same canonical text, so one index serves both.
func (d *Document) compare(a, b member) int {
	x := d.text[a.start+1 : a.nameEnd-1]
	y := d.text[b.start+1 : b.nameEnd-1]
	if bytes.IndexByte(x, '\\') < 0 && bytes.IndexByte(y, '\\') < 0 {
		return bytes.Compare(x, y)
	}
	for i := 0; i < len(x) && i < len(y); {
		c, size := firstByte(x[i:])
		other, _ := firstByte(y[i:])
		if c != other {
			return cmp.Compare(c, other)
		}
		i += size
	}
	return cmp.Compare(len(x), len(y))
}
