package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/gdamore/tcell/v3"
	"github.com/gdamore/tcell/v3/color"
	"github.com/gdamore/tcell/v3/vt"
)

// terminal is a terminal without a screen, and quire top on it.
type terminal struct {
	vt.MockTerm
	news  chan topNews
	ended chan struct{}
}

func newTerminal(t *testing.T, colour bool) *terminal {
	t.Helper()
	x := &terminal{MockTerm: vt.NewMockTerm(vt.MockOptSize{X: 120, Y: 30}, vt.MockOptColors(256)), news: make(chan topNews), ended: make(chan struct{})}
	screen, err := tcell.NewTerminfoScreenFromTty(x)
	if err != nil {
		t.Fatal(err)
	}
	if err := screen.Init(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer close(x.ended)
		defer screen.Fini()
		runTop(ctx, screen, newTopModel("s"), x.news, longAfter, colour)
	}()
	t.Cleanup(func() {
		cancel()
		<-x.ended
	})
	return x
}

// at is the cell where text begins; nil: it is not there.
func (x *terminal) at(text string, size vt.Coord) *vt.Cell {
	for row := range size.Y {
		var b strings.Builder
		for col := range size.X {
			b.WriteString(x.GetCell(vt.Coord{X: col, Y: row}).C)
		}
		if before, _, ok := strings.Cut(b.String(), text); ok {
			c := x.GetCell(vt.Coord{X: vt.Col(runes(before)), Y: row})
			return &c
		}
	}
	return nil
}

func (x *terminal) waitFor(t *testing.T, text string, size vt.Coord) vt.Cell {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
		if c := x.at(text, size); c != nil {
			return *c
		}
		<-time.After(time.Millisecond)
	}
	t.Fatalf("%q does not come", text)
	return vt.Cell{}
}

// TestTopOnATerminal: what is drawn, keys, another size, and an end that leaves nothing behind.
func TestTopOnATerminal(t *testing.T) {
	big, small := vt.Coord{X: 120, Y: 30}, vt.Coord{X: 60, Y: 12}
	x := newTerminal(t, true)
	x.waitFor(t, "asking...", big)
	x.news <- topNews{sample: sampleAt(t, 10)}
	if bad, good := x.waitFor(t, "takes nothing", big), x.waitFor(t, "[##", big); bad.S.Fg() != color.Maroon || good.S.Fg() != color.Olive {
		t.Errorf("a tier that takes nothing is drawn in %v, the bar of a full one in %v", bad.S.Fg(), good.S.Fg())
	}
	x.KeyTap(vt.KeyTab)
	x.waitFor(t, "tenants  by MEMORY", big)
	x.SetSize(small)
	x.waitFor(t, "tenants  by MEMORY", small)
	x.KeyTap(vt.KeyQ)
	select {
	case <-x.ended:
	case <-time.After(20 * time.Second):
		t.Fatal("q does not end it")
	}
}

// TestTopInASCII: where the locale has no Unicode, curves are of what there is.
func TestTopInASCII(t *testing.T) {
	for locale, curve := range map[string]string{"C": " _#_", "C.UTF-8": " ▁█▁"} {
		t.Setenv("LC_ALL", locale)
		size := vt.Coord{X: 120, Y: 30}
		x := newTerminal(t, false)
		for seconds := range 4 {
			x.news <- topNews{sample: sampleAt(t, 10+seconds)}
		}
		x.waitFor(t, "THE LAST 3", size)
		x.waitFor(t, curve, size)
	}
}

// TestTopWithoutColour: the same text, and no colour anywhere.
func TestTopWithoutColour(t *testing.T) {
	size := vt.Coord{X: 120, Y: 30}
	x := newTerminal(t, false)
	x.news <- topNews{sample: sampleAt(t, 10)}
	x.waitFor(t, "takes nothing", size)
	plain := x.waitFor(t, "sessions", size).S.Fg()
	for row := range size.Y {
		for col := range size.X {
			if c := x.GetCell(vt.Coord{X: col, Y: row}); c.C != "" && c.C != " " && c.S.Fg() != plain {
				t.Fatalf("%q is drawn in %v, other text in %v", c.C, c.S.Fg(), plain)
			}
		}
	}
}
