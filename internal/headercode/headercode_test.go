package headercode

import (
	"bytes"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var headers = []struct {
	name     string
	header   http.Header
	appended []string
}{
	{"one", http.Header{"Content-Type": {"application/json"}}, nil},
	{"lines keep their order", http.Header{"Link": {"</b>; rel=next", "</a>", "</b>; rel=next"}}, nil},
	{"commas are no separators", http.Header{"Link": {"</a>, </b>", "</c>"}}, nil},
	{"empty value", http.Header{"X-Empty": {""}, "X-More": {"", "a", ""}}, nil},
	{"name without values", http.Header{"Content-Type": {}, "X-After": {"a"}}, nil},
	{"empty name", http.Header{"": {"a"}}, nil},
	{"not canonical", http.Header{"etag": {"a"}, "ETag": {"b"}, "Etag": {"c"}}, nil},
	{"any bytes", http.Header{"X-\x00\xff": {"\x00", "\xff\xfe", "日本", "a\r\nB: c"}}, nil},
	{"long", http.Header{"X-Long": {strings.Repeat("a", 127), strings.Repeat("b", 128), strings.Repeat("c", 70_000)}}, nil},
	{"one appended", http.Header{"Link": {"</a>"}, "Vary": {"Accept"}}, []string{"Vary"}},
	{"all appended, one without values", http.Header{"Link": {}, "Vary": {"Accept", "Origin"}}, []string{"Link", "Vary"}},
	{"many", manyNames(100), []string{"X-17", "X-99"}},
}

func manyNames(n int) http.Header {
	h := http.Header{}
	for i := range n {
		h["X-"+strconv.Itoa(i)] = []string{strconv.Itoa(i), "and more"}
	}
	return h
}

func TestRoundTrip(t *testing.T) {
	t.Parallel()
	for _, test := range headers {
		t.Run(test.name, func(t *testing.T) {
			b := Append(nil, test.header, test.appended)
			h, appended, err := Decode(b)
			require.NoError(t, err)
			require.Equal(t, test.header, h)
			require.Equal(t, test.appended, appended)

			require.Equal(t, b, Append(nil, h, appended), "equal headers have equal encodings")
			require.Equal(t, append([]byte("before"), b...), Append([]byte("before"), h, appended))
		})
	}
}

func TestNothingIsEmpty(t *testing.T) {
	t.Parallel()
	for _, h := range []http.Header{nil, {}} {
		require.Empty(t, Append(nil, h, []string{"Vary"}))
	}
	h, appended, err := Decode(nil)
	require.NoError(t, err)
	require.Nil(t, h)
	require.Nil(t, appended)
}

// A nil slice of values means the same to net/http as an empty one, and comes back so.
func TestNilValuesComeBackEmpty(t *testing.T) {
	t.Parallel()
	h, _, err := Decode(Append(nil, http.Header{"Content-Type": nil}, nil))
	require.NoError(t, err)
	require.Equal(t, http.Header{"Content-Type": {}}, h)
}

// A mark for a name that the header does not have says nothing.
func TestMarkWithoutAName(t *testing.T) {
	t.Parallel()
	_, appended, err := Decode(Append(nil, http.Header{"Link": {"</a>"}}, []string{"Vary"}))
	require.NoError(t, err)
	require.Empty(t, appended)
}

func TestDecodedSharesNoMemory(t *testing.T) {
	t.Parallel()
	b := Append(nil, http.Header{"A": {"1", "2"}, "B": {"3"}}, nil)
	h, _, err := Decode(b)
	require.NoError(t, err)
	clear(b)
	h["A"] = append(h["A"], "new") // one backing array holds the values of both
	require.Equal(t, http.Header{"A": {"1", "2", "new"}, "B": {"3"}}, h)
}

func TestCorrupt(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]string{
		"another version":        "\x02\x00\x00",
		"version alone":          "\x01",
		"no total":               "\x01\x00",
		"a name too few":         "\x01\x02\x01\x01A\x02\x01a",
		"a name too many":        "\x01\x01\x01\x01A\x02\x01a\x01B\x00",
		"a name twice":           "\x01\x02\x02\x01A\x02\x01a\x01A\x02\x01b",
		"total too small":        "\x01\x01\x00\x01A\x02\x01a",
		"total too large":        "\x01\x01\x02\x01A\x02\x01a",
		"values missing":         "\x01\x01\x01\x01A\x02",
		"value cut short":        "\x01\x01\x01\x01A\x02\x05a",
		"name longer than all":   "\x01\x01\x00\xff\xff\xff\xff\xff\xff\xff\xff\x7fA\x00",
		"length without end":     "\x01\x01\x00" + strings.Repeat("\xff", 11),
		"names beyond memory":    "\x01\xff\xff\xff\xff\xff\xff\xff\xff\x7f\x00",
		"total beyond memory":    "\x01\x01\xff\xff\xff\xff\xff\xff\xff\xff\x7f\x01A\x00",
		"a count beyond a total": "\x01\x01\x01\x01A\xfe\xff\xff\xff\x0f\x01a",
	} {
		h, appended, err := DecodeString(s)
		require.ErrorIs(t, err, errCorrupt, name)
		require.Nil(t, h, name)
		require.Nil(t, appended, name)
	}
}

// Anything cut off is noticed.
func TestTruncated(t *testing.T) {
	t.Parallel()
	whole := Append(nil, http.Header{"Link": {"</a>", "</b>"}, "Vary": {"Accept"}}, []string{"Vary"})
	for n := 1; n < len(whole); n++ {
		_, _, err := Decode(whole[:n])
		require.ErrorIs(t, err, errCorrupt, "the first %d of %d bytes", n, len(whole))
	}
}

// Not parallel: it counts allocations.
func TestAllocations(t *testing.T) {
	h := http.Header{"Content-Type": {"application/json"}, "Link": {"</a>", "</b>"}}
	dst := make([]byte, 0, 512)
	require.Zero(t, testing.AllocsPerRun(100, func() { Append(dst, h, nil) }))

	s := string(Append(nil, h, nil))
	got := testing.AllocsPerRun(100, func() { _, _, _ = DecodeString(s) })
	require.LessOrEqual(t, got, 3.0, "the map (2) and all values")
}

func FuzzDecode(f *testing.F) {
	for _, test := range headers {
		f.Add(Append(nil, test.header, test.appended))
	}
	f.Add([]byte("\x01\xff\xff\xff\xff\xff\xff\xff\xff\x7f\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, appended, err := Decode(b)
		if err != nil {
			require.Nil(t, h)
			return
		}
		// What could be read means something: it survives another round.
		again, appendedAgain, err := Decode(Append(nil, h, appended))
		require.NoError(t, err)
		if len(h) > 0 {
			require.Equal(t, h, again)
		}
		require.ElementsMatch(t, appended, appendedAgain)
	})
}

func FuzzRoundTrip(f *testing.F) {
	f.Add([]byte("Content-Type\napplication/json\n\nLink\n</a>\n</b>"), byte(1))
	f.Add([]byte("\n\n\n\xff\x00\n"), byte(3))
	f.Fuzz(func(t *testing.T, b []byte, marks byte) {
		h := http.Header{}
		var appended []string
		for i, field := range bytes.Split(b, []byte("\n\n")) {
			lines := strings.Split(string(field), "\n")
			if _, known := h[lines[0]]; !known && marks>>(i%8)&1 == 1 {
				appended = append(appended, lines[0])
			}
			h[lines[0]] = lines[1:]
		}
		got, gotAppended, err := Decode(Append(nil, h, appended))
		require.NoError(t, err)
		require.Equal(t, h, got)
		require.ElementsMatch(t, appended, gotAppended)
	})
}
