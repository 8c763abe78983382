package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// outputFormat is the value of -o.
type outputFormat string

const (
	asTable outputFormat = "table"
	asJSON  outputFormat = "json"
)

func (f *outputFormat) Set(s string) error {
	if s != string(asTable) && s != string(asJSON) {
		return fmt.Errorf("write table or json")
	}
	*f = outputFormat(s)
	return nil
}

func (f *outputFormat) String() string {
	if *f == "" {
		return string(asTable)
	}
	return string(*f)
}

func (f *outputFormat) Type() string { return "format" }

// print writes v as JSON, or what human writes for people. JSON names are stable: they are those of the tags.
func (a *app) print(v any, human func(w io.Writer) error) error {
	if a.output != asJSON {
		return human(a.out)
	}
	enc := json.NewEncoder(a.out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// table lays out rows under a head, columns apart by two blanks. Cells are plain text of one line.
type table struct {
	right map[int]bool // columns of numbers
	rows  [][]string
}

func newTable(head ...string) *table { return &table{right: map[int]bool{}, rows: [][]string{head}} }

// numbers says which columns are set to the right.
func (t *table) numbers(columns ...int) *table {
	for _, c := range columns {
		t.right[c] = true
	}
	return t
}

func (t *table) row(cells ...string) { t.rows = append(t.rows, cells) }

func (t *table) write(w io.Writer) error {
	var widths []int
	for _, r := range t.rows {
		for c, cell := range r {
			if c == len(widths) {
				widths = append(widths, 0)
			}
			widths[c] = max(widths[c], runes(cell))
		}
	}
	var b strings.Builder
	for _, r := range t.rows {
		var line strings.Builder
		for c, cell := range r {
			pad := strings.Repeat(" ", widths[c]-runes(cell))
			if t.right[c] {
				line.WriteString(pad + cell + "  ")
			} else {
				line.WriteString(cell + pad + "  ")
			}
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func runes(s string) int { return len([]rune(s)) }

// pairs writes name and value lines.
func pairs(w io.Writer, lines ...[2]string) error {
	width := 0
	for _, l := range lines {
		width = max(width, len(l[0]))
	}
	for _, l := range lines {
		if _, err := fmt.Fprintf(w, "%-*s  %s\n", width, l[0], l[1]); err != nil {
			return err
		}
	}
	return nil
}

func bytesText(n uint64) string { return humanize.IBytes(n) }

func countText(n uint64) string { return humanize.Comma(int64(min(n, 1<<62))) }

// share is hits of all as a percentage, "-" of nothing.
func share(hits, misses uint64) string {
	if hits+misses == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f %%", 100*float64(hits)/float64(hits+misses))
}

// instant is a time in JSON: RFC 3339 in UTC, absent when there is none.
func instant(t *timestamppb.Timestamp) string {
	if t == nil || t.GetSeconds() == 0 {
		return ""
	}
	return t.AsTime().UTC().Format(time.RFC3339)
}

// ago is a time for people.
func (a *app) ago(t *timestamppb.Timestamp) string {
	if instant(t) == "" {
		return "never"
	}
	return humanize.RelTime(t.AsTime(), a.now(), "ago", "from now")
}
