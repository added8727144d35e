// Package chart draws bars, as an SVG that any browser and any README shows.
package chart

import (
	"fmt"
	"html"
	"io"
)

// Bar is one value.
type Bar struct {
	Label string
	Value float64
}

const (
	width, labels, values = 720, 180, 60
	row, top              = 24, 40
)

// Write draws bars below one another, and a line at 1.
func Write(w io.Writer, title string, bars []Bar) {
	most := 1.0
	for _, bar := range bars {
		most = max(most, bar.Value)
	}
	scale := (width - labels - values) / most
	height := top + row*len(bars) + 10
	fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="13">`+"\n", width, height)
	fmt.Fprintf(w, `<rect width="100%%" height="100%%" fill="white"/><text x="10" y="22" font-size="15">%s</text>`+"\n", html.EscapeString(title))
	for i, bar := range bars {
		y := top + row*i
		fmt.Fprintf(w, `<text x="%d" y="%d" text-anchor="end">%s</text>`, labels-8, y+15, html.EscapeString(bar.Label))
		fmt.Fprintf(w, `<rect x="%d" y="%d" width="%.1f" height="%d" fill="%s"/>`, labels, y+3, bar.Value*scale, row-6, color(i))
		fmt.Fprintf(w, `<text x="%.1f" y="%d">%.2f</text>`+"\n", labels+bar.Value*scale+6, y+15, bar.Value)
	}
	one := labels + scale
	fmt.Fprintf(w, `<line x1="%.1f" x2="%.1f" y1="%d" y2="%d" stroke="black" stroke-dasharray="4"/>`+"\n</svg>\n", one, one, top-4, height-6)
}

// color tells the two of a pair apart.
func color(i int) string {
	if i%2 == 0 {
		return "#9bb4d1"
	}
	return "#2f6db3"
}
