package main

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// topModel is all that the screen shows: view draws it, and it changes by the methods below alone.
//
//	news  ──learn──┐
//	keys  ──key────┼──> topModel ──view──> lines
//	size  ──resize─┘
type topModel struct {
	server        string
	width, height int
	ascii         bool // the terminal shows nothing else
	now           time.Time

	last    *topSample // nil: none yet
	data    topView    // of last
	learned time.Time  // when last came
	trouble string     // why no news come any more; "": they do
	since   time.Time  // of the trouble
	trail   []topRates // one for each sample, the newest last; maxTrail at most

	shown  topTableKind
	sorts  [numTopTables]topSort
	offset int // rows of the table scrolled past
	paused bool
	help   bool
}

// maxTrail is how many samples the curves show: a minute of them, with an interval of a second.
const maxTrail = 60

// topTableKind is one of the tables below the figures.
type topTableKind int

const (
	topNamespaces topTableKind = iota
	topTenants
	topInstances
	numTopTables
)

// topSort is by a column: numbers from the largest, words from A, or the other way round.
type topSort struct {
	column  int
	reverse bool
}

func newTopModel(server string) *topModel {
	return &topModel{
		server: server, width: 80, height: 24,
		sorts: [numTopTables]topSort{topNamespaces: {column: 5}, topTenants: {column: 1}, topInstances: {column: 5}},
	}
}

// learn takes in what the sampler tells at a time.
func (m *topModel) learn(n topNews, at time.Time) {
	m.now = at
	if n.err != nil {
		if m.trouble == "" {
			m.since = at
		}
		m.trouble = errorLine(n.err)
		return
	}
	m.trouble = ""
	if m.paused {
		return
	}
	m.data = viewOfTop(m.last, n.sample)
	m.last, m.learned = n.sample, at
	if m.data.Rates == nil { // another server, or the same one started anew
		m.trail = nil
		return
	}
	if len(m.trail) == maxTrail {
		m.trail = slices.Delete(m.trail, 0, 1)
	}
	m.trail = append(m.trail, *m.data.Rates)
}

func (m *topModel) resize(width, height int) { m.width, m.height = max(0, width), max(0, height) }

// topKey is a key that means something here.
type topKey int

const (
	pressOther topKey = iota // means nothing
	pressQuit
	pressHelp
	pressPause
	pressTable // the next table
	pressSort  // by the next column
	pressSortBack
	pressReverse
	pressUp
	pressDown
	pressPageUp
	pressPageDown
	pressHome
	pressEnd
	pressTable1
	pressTable2
	pressTable3
)

// key carries out a key; quit says that the screen shall end.
func (m *topModel) key(k topKey) (quit bool) {
	if m.help && k != pressQuit { // any key puts the help away
		m.help = false
		return false
	}
	switch k {
	case pressQuit:
		return true
	case pressHelp:
		m.help = true
	case pressPause:
		m.paused = !m.paused
	case pressTable:
		m.show((m.shown + 1) % numTopTables)
	case pressTable1, pressTable2, pressTable3:
		m.show(topNamespaces + topTableKind(k-pressTable1))
	case pressSort, pressSortBack:
		columns := len(m.table().columns)
		step := 1
		if k == pressSortBack {
			step = columns - 1
		}
		s := &m.sorts[m.shown]
		s.column, s.reverse = (s.column+step)%columns, false
		m.offset = 0
	case pressReverse:
		m.sorts[m.shown].reverse = !m.sorts[m.shown].reverse
		m.offset = 0
	case pressOther:
	default:
		m.scroll(k)
	}
	return false
}

func (m *topModel) show(t topTableKind) { m.shown, m.offset = t, 0 }

func (m *topModel) scroll(k topKey) {
	page := max(1, m.tableRows())
	switch k {
	case pressUp:
		m.offset--
	case pressDown:
		m.offset++
	case pressPageUp:
		m.offset -= page
	case pressPageDown:
		m.offset += page
	case pressHome:
		m.offset = 0
	case pressEnd:
		m.offset = len(m.table().rows)
	}
	m.offset = max(0, min(m.offset, len(m.table().rows)-page))
}

// topTable is one of the tables, sorted.
type topTable struct {
	title   string
	columns []topColumn
	rows    []topRow
}

type topColumn struct {
	head   string
	number bool // set to the right, the largest first
}

// topRow is what a row shows, and what its columns of numbers are sorted by.
type topRow struct {
	cells  []string
	values []float64
	style  topStyle
}

func (t *topTable) add(style topStyle, cells []string, values []float64) {
	for i := range cells {
		cells[i] = printable(cells[i])
	}
	t.rows = append(t.rows, topRow{cells, values, style})
}

// printable is text of others without what would move a terminal's cursor.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 || r >= 0x2028 && r <= 0x202e || r >= 0x2066 && r <= 0x2069 {
			return '·'
		}
		return r
	}, s)
}

func (t *topTable) sort(s topSort) {
	slices.SortStableFunc(t.rows, func(x, y topRow) int {
		by := 0
		if t.columns[s.column].number {
			by = cmp.Compare(y.values[s.column], x.values[s.column])
		} else {
			by = cmp.Compare(x.cells[s.column], y.cells[s.column])
		}
		if s.reverse {
			by = -by
		}
		return cmp.Or(by, slices.Compare(x.cells, y.cells))
	})
}
