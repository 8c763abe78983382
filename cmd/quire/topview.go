package main

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
)

// topStyle is how a span of text looks. Where there is no colour, the text alone says the same.
type topStyle int

const (
	topPlain topStyle = iota
	topDim
	topHead
	topGood
	topWarn
	topBad
)

// topSpan is text of one style; topLine is a line of the screen.
type (
	topSpan struct {
		text  string
		style topStyle
	}
	topLine []topSpan
)

func line(spans ...topSpan) topLine      { return spans }
func plain(text string) topSpan          { return topSpan{text, topPlain} }
func dim(text string) topSpan            { return topSpan{text, topDim} }
func headed(text string) topLine         { return topLine{{text, topHead}} }
func (l topLine) with(s topSpan) topLine { return append(l, s) }

func (l topLine) text() string {
	var b strings.Builder
	for _, s := range l {
		b.WriteString(s.text)
	}
	return strings.TrimRight(b.String(), " ")
}

// view is the screen: height lines at most, none wider than width once cut.
func (m *topModel) view() []topLine {
	if m.help {
		return m.cut(m.helpLines())
	}
	top := m.figures()
	rows := max(0, m.height-len(top)-1)
	lines := append(top, m.tableLines(rows)...)
	for len(lines) < m.height-1 {
		lines = append(lines, nil)
	}
	return m.cut(append(lines, m.keyLine()))
}

// cut keeps what fits the screen.
func (m *topModel) cut(lines []topLine) []topLine {
	lines = lines[:min(len(lines), m.height)]
	for i, l := range lines {
		left := m.width
		for j, s := range l {
			if n := runes(s.text); n > left {
				lines[i] = slices.Clone(l[:j+1])
				lines[i][j].text = string([]rune(s.text)[:left])
				break
			} else {
				left -= n
			}
		}
	}
	return lines
}

// What a table needs to be worth its place: title, head and two rows.
const minTableLines = 4

// figures is what stands above the table. Where the screen is low, the last parts go first.
func (m *topModel) figures() []topLine {
	parts := [][]topLine{m.headLines()}
	if m.last != nil {
		parts = append(parts, m.tierLines(), m.rateLines(), m.reasonLines(), m.evictionLines())
	}
	var lines []topLine
	for i, p := range parts {
		if len(p) > 0 && i > 0 && i < 3 {
			p = append([]topLine{nil}, p...)
		}
		if i > 0 && len(lines)+len(p)+minTableLines+2 > m.height {
			break
		}
		lines = append(lines, p...)
	}
	return append(lines, nil)
}

func (m *topModel) headLines() []topLine {
	d := &m.data
	first := line(topSpan{"quire top  ", topHead}, plain(m.server))
	if m.last != nil {
		first = first.with(plain("  version " + printable(d.Version) + "  up " + spanText(max(0, d.UptimeSeconds))))
	}
	switch {
	case m.trouble != "" && m.last == nil:
		first = first.with(topSpan{"  NO ANSWER", topBad})
	case m.trouble != "":
		first = first.with(topSpan{"  NO ANSWER for " + spanText(max(0, m.now.Sub(m.since).Seconds())), topBad})
	case m.paused:
		first = first.with(topSpan{"  PAUSED", topWarn})
	}
	lines := []topLine{first}
	if m.trouble != "" {
		lines = append(lines, line(topSpan{"trying again: " + printable(m.trouble), topBad}))
	}
	if m.last == nil {
		if m.trouble == "" {
			lines = append(lines, line(dim("asking...")))
		}
		return lines
	}
	open := 0
	for _, i := range d.Instances {
		if i.Breaker == "open" {
			open++
		}
	}
	instances := line(plain(fmt.Sprintf("engine instances %d", len(d.Instances))))
	if open > 0 {
		instances = instances.with(topSpan{fmt.Sprintf(", %d with an open breaker", open), topBad})
	}
	instances = instances.with(plain(fmt.Sprintf("   sessions %d   leases %d read, %d publications   pinned %s", d.Sessions, d.ReadLeases, d.Publications, bytesText(d.PinnedBytes))))
	return append(lines,
		line(plain(fmt.Sprintf("pages %s in %s extents   metadata %s of %s", countText(d.Pages), countText(d.Extents), bytesText(d.MetadataBytes), quotaText(d.MetadataCapacity)))),
		instances)
}

// The bar of a tier is as wide as a line has room for beside the rest of it.
const (
	leastBarCells = 8
	mostBarCells  = 24
	tierCells     = 71 // of the rest
)

func (m *topModel) barCells() int {
	if m.width == 0 { // no screen
		return mostBarCells
	}
	return min(max(m.width-tierCells, leastBarCells), mostBarCells)
}

// fullTier is the share from which a tier's bar changes colour: it evicts, or soon will.
const fullTier = 0.9

func (m *topModel) tierLines() []topLine {
	cells, legend := m.barCells(), "PAGES #  ELSE ="
	if len(legend) > cells+2 {
		legend = "PAGES #"
	}
	lines := []topLine{headed(fmt.Sprintf("%-5s %-*s %6s  %9s %9s  %11s  %9s  %9s", "TIER", cells+2, legend, "USED", "BYTES", "OF", "WATER LEVEL", "EVICTED", "EVICTED/s"))}
	for _, t := range m.data.Tiers {
		other := t.Slack + t.Metadata
		used := partOf(float64(t.Live+other), float64(t.Capacity))
		style := topGood
		if used >= fullTier {
			style = topWarn
		}
		evicting := math.NaN()
		if m.data.Rates != nil {
			evicting = m.data.Rates.tiers[t.Tier]
		}
		lines = append(lines, line(plain(fmt.Sprintf("%-5s ", t.Tier)), topSpan{bar(cells, partOf(float64(t.Live), float64(t.Capacity)), partOf(float64(other), float64(t.Capacity))), style},
			plain(fmt.Sprintf(" %6s  %9s %9s  %11.3g  %9s  %9s", percentText(used), bytesText(t.Live+other), bytesText(t.Capacity), t.WaterLevel, countText(t.Evicted), rateText(evicting)))))
		switch {
		case !t.Writable:
			lines = append(lines, line(topSpan{fmt.Sprintf("%-5s takes nothing: %s", "", printable(cmp.Or(t.Trouble, "degraded"))), topBad}))
		case t.Trouble != "":
			lines = append(lines, line(topSpan{fmt.Sprintf("%-5s %s", "", printable(t.Trouble)), topWarn}))
		}
	}
	return lines
}

// bar is [####==  ]: shares of one whole, in so many cells.
func bar(cells int, live, other float64) string {
	if math.IsNaN(live) {
		return "[" + strings.Repeat(" ", cells) + "]"
	}
	full := int(math.Round(min(1, live) * float64(cells)))
	rest := min(cells-full, int(math.Round(other*float64(cells))))
	return "[" + strings.Repeat("#", full) + strings.Repeat("=", rest) + strings.Repeat(" ", cells-full-rest) + "]"
}

func percentText(share float64) string {
	if math.IsNaN(share) {
		return "-"
	}
	return fmt.Sprintf("%.0f %%", 100*share)
}

func (m *topModel) rateLines() []topLine {
	c, r := &m.data.Counters, m.data.Rates
	if r == nil {
		none := math.NaN()
		r = &topRates{Lookups: none, HitKeys: none, MissedKeys: none, FetchedPages: none, FetchedBytes: none, CommittedPages: none, WrittenBytes: none, EvictedPages: none}
	}
	keys, allKeys := r.HitKeys+r.MissedKeys, c.HitKeys+c.MissedKeys
	head := fmt.Sprintf("%-10s%-27s%-27s", "", "NOW, EACH SECOND", "SINCE THE START")
	if len(m.trail) > 1 {
		head += fmt.Sprintf("THE LAST %d", len(m.trail))
	}
	lines := []topLine{headed(head)}
	add := func(name, now, ever string, curve func(*topRates) float64) {
		lines = append(lines, line(plain(fmt.Sprintf("%-10s%-27s%-27s", name, now, ever)), topSpan{m.curve(curve), topGood}))
	}
	add("lookups", rateText(r.Lookups)+" of "+rateText(keys)+" keys", countText(c.Lookups)+" of "+countText(allKeys)+" keys", func(r *topRates) float64 { return r.Lookups })
	add("keys hit", ratioText(r.HitKeys, keys), share(c.HitKeys, c.MissedKeys), func(r *topRates) float64 { return partOf(r.HitKeys, r.HitKeys+r.MissedKeys) })
	add("fetched", rateText(r.FetchedPages)+" pages, "+byteRateText(r.FetchedBytes), countText(c.FetchedPages)+" pages, "+bytesText(c.FetchedBytes), func(r *topRates) float64 { return r.FetchedBytes })
	add("published", rateText(r.CommittedPages)+" pages, "+byteRateText(r.WrittenBytes), countText(c.CommittedPages)+" pages, "+bytesText(c.WrittenBytes), func(r *topRates) float64 { return r.WrittenBytes })
	add("evicted", rateText(r.EvictedPages)+" last copies", countText(c.EvictedPages)+" last copies", func(r *topRates) float64 { return r.EvictedPages })
	return lines
}

// curve draws the trail, from 0 to the largest value there.
func (m *topModel) curve(get func(*topRates) float64) string {
	most := 0.0
	for i := range m.trail {
		if v := get(&m.trail[i]); v > most {
			most = v
		}
	}
	steps := []rune("▁▂▃▄▅▆▇█")
	if m.ascii {
		steps = []rune("_.:-=+*#")
	}
	var b strings.Builder
	for i := range m.trail {
		v := get(&m.trail[i])
		switch {
		case math.IsNaN(v):
			b.WriteByte(' ')
		case most == 0:
			b.WriteRune(steps[0])
		default:
			b.WriteRune(steps[int(math.Round(v/most*float64(len(steps)-1)))])
		}
	}
	return b.String()
}

// reasonLines say why pages were not served, not taken and taken away, where there are any.
func (m *topModel) evictionLines() []topLine {
	text := m.data.Eviction.text()
	if text == "" {
		return nil
	}
	return []topLine{line(plain(fmt.Sprintf("%-10s", "eviction")), dim(printable(text)))}
}

func (m *topModel) reasonLines() []topLine {
	c := &m.data.Counters
	var lines []topLine
	add := func(name string, byReason map[string]uint64) {
		if text := reasonsText(byReason); text != "" {
			lines = append(lines, line(plain(fmt.Sprintf("%-10s", name)), dim(text)))
		}
	}
	add("unserved", c.MissedPages)
	refused := c.RefusedPages
	if c.NotWorthPages > 0 {
		refused = map[string]uint64{"not_worth": c.NotWorthPages}
		for why, n := range c.RefusedPages {
			refused[why] += n
		}
	}
	add("refused", refused)
	add("removed", c.RemovedExtents)
	return lines
}

// reasonsText is "absent 12, busy 3": the most frequent first.
func reasonsText(byReason map[string]uint64) string {
	var all []string
	for why := range byReason {
		all = append(all, why)
	}
	slices.SortFunc(all, func(x, y string) int {
		return cmp.Or(cmp.Compare(byReason[y], byReason[x]), cmp.Compare(x, y))
	})
	for i, why := range all {
		all[i] = why + " " + countText(byReason[why])
	}
	return strings.Join(all, ", ")
}

// tableRows is how many rows of the table the screen has room for.
func (m *topModel) tableRows() int { return max(0, m.height-len(m.figures())-1-2) }

// tableLines is the shown table in so many lines.
func (m *topModel) tableLines(room int) []topLine {
	if m.last == nil || room <= 0 {
		return nil
	}
	t := m.table()
	order := "by " + t.columns[m.sorts[m.shown].column].head
	if m.sorts[m.shown].reverse {
		order += ", reversed"
	}
	from := max(0, min(m.offset, len(t.rows)))
	to := min(len(t.rows), from+max(0, room-2))
	seen := fmt.Sprintf("%d to %d of %s", from+1, to, countText(uint64(len(t.rows))))
	if to == from {
		seen = "none of " + countText(uint64(len(t.rows)))
	}
	lines := []topLine{line(topSpan{t.title, topHead}, dim("  "+order+"  "+seen))}
	lines = append(lines, t.lines(from, to, m.sorts[m.shown].column)...)
	return lines[:min(len(lines), room)]
}

// lines lays out the head and rows from..to. Widths are those of all rows, so that scrolling moves no column.
func (t *topTable) lines(from, to, sorted int) []topLine {
	widths := make([]int, len(t.columns))
	for c, column := range t.columns {
		widths[c] = runes(column.head)
		for _, r := range t.rows {
			widths[c] = max(widths[c], runes(r.cells[c]))
		}
	}
	cell := func(c int, text string) string {
		pad := strings.Repeat(" ", widths[c]-runes(text))
		if t.columns[c].number {
			return pad + text + "  "
		}
		return text + pad + "  "
	}
	var head topLine
	for c, column := range t.columns {
		style := topDim
		if c == sorted {
			style = topHead
		}
		head = head.with(topSpan{cell(c, column.head), style})
	}
	lines := []topLine{head}
	for _, r := range t.rows[from:to] {
		var b strings.Builder
		for c, text := range r.cells {
			b.WriteString(cell(c, text))
		}
		lines = append(lines, line(topSpan{b.String(), r.style}))
	}
	return lines
}

func (m *topModel) keyLine() topLine {
	return line(dim("q quit  ? help  tab table  s sort  r reverse  p pause  arrows scroll"))
}

func (m *topModel) helpLines() []topLine {
	lines := []topLine{headed("quire top: keys"), nil}
	for _, l := range [][2]string{
		{"tab, 1 2 3", "the next table: namespaces, tenants, engine instances"},
		{"s, S", "sort by the next column, the one before"},
		{"r", "reverse the order"},
		{"arrows, j k, page up and down, home, end", "scroll the table"},
		{"p", "pause and go on"},
		{"q, Esc, Ctrl-C", "quit"},
	} {
		lines = append(lines, line(plain(fmt.Sprintf("  %-42s%s", l[0], l[1]))))
	}
	return append(lines, nil,
		line(plain("  The water level of a tier is the score of its next victim, by the policy that runs there.")),
		line(plain("  Engine instances are their own word, some seconds old; all else is what the server counts.")),
		nil, line(dim("any key goes back")))
}
