package disk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/quire-kv/quire/internal/memfs"
	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/tier"
)

// flip changes one bit of a file.
func flip(t *testing.T, fs vfs.FS, name string, at int64, bit int) {
	t.Helper()
	f, err := fs.OpenReadWrite(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b [1]byte
	if _, err := f.ReadAt(b[:], at); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 1 << bit
	if _, err := f.WriteAt(b[:], at); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
}

// settled is a directory with a history, closed in order.
func settled(t *testing.T, rng *rand.Rand) (memfs.FS, *world) {
	mem := memfs.NewCrashable()
	w := newWorld(t, rng)
	w.d = openDriver(t, worldOptions(mem))
	w.script()
	if err := w.d.Close(); err != nil {
		t.Fatal(err)
	}
	return mem, w
}

// part is a run of bytes of a file, by what it holds.
type part struct {
	name, what string
	from, to   int64
	id         uint64 // of the extent that is touched; 0: none
	harmless   bool   // nothing is lost
}

// parts lists what the segments hold, live regions cut up.
func (w *world) parts(d *Driver) (out []part) {
	for _, s := range d.table {
		if s == nil || !s.made {
			continue
		}
		name := segmentName(s.number)
		out = append(out, part{name, "label", 0, blockBytes, 0, true})
		for _, id := range w.order {
			x := w.things[id]
			if len(x.copies) == 0 || !x.acked || d.segment(x.copies[0].Handle) != s {
				continue
			}
			r := x.copies[0]
			var h page.Header
			if err := checkRegion(&h, x.region(w.t)); err != nil {
				w.t.Fatal(err)
			}
			header := r.Offset + frameBytes + int64(h.EncodedBytes())
			payload := r.Offset + int64(page.PayloadOffset(h.EncodedBytes()))
			out = append(out,
				part{name, "frame", r.Offset, r.Offset + frameBytes, id, true},
				part{name, "header", r.Offset + frameBytes, header, id, false},
				part{name, "padding", header, payload, id, true},
				part{name, "payload", payload, r.Offset + r.Bytes, id, false},
			)
			if end := r.Offset + tier.RoundUp(r.Bytes); end > r.Offset+r.Bytes {
				out = append(out, part{name, "end padding", r.Offset + r.Bytes, end, id, true})
			}
		}
	}
	return out
}

// TestCase_C60_OneFlippedBit flips a bit in each part of each live region, of labels, journal, identity and index: the
// tier opens, all but the extent that was touched is whole, nothing that ended is back, and Check names the place.
func TestCase_C60_OneFlippedBit(t *testing.T) {
	if testing.Short() {
		t.Skip("long, and one goroutine's")
	}
	rng := newRand(t)
	mem, w := settled(t, rng)
	before := w.state()
	clean, err := Check(context.Background(), mem, "data", CheckOptions{})
	if err != nil || clean.Faults > 0 || clean.Regions == 0 {
		t.Fatalf("check of what is whole: %+v, %v", clean, err)
	}
	all := w.parts(w.d)
	names, err := mem.List("data")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, ".jrn") {
			all = append(all, part{name, "journal label", 0, blockBytes, 0, true})
			for at := int64(blockBytes); at < 8*blockBytes; at += blockBytes {
				all = append(all, part{name, "journal", at, at + 200, 0, true}, part{name, "second journal", minJournalBytes/2 + at, minJournalBytes/2 + at + 200, 0, true})
			}
		}
	}
	all = append(all, part{identityName, "identity", 0, blockBytes, 0, true})
	named := map[string]int{}
	for _, p := range all {
		fs := mem.CrashClone(vfs.CrashCloneCfg{})
		at := p.from + rng.Int64N(p.to-p.from)
		flip(t, fs, "data/"+p.name, at, rng.IntN(8))
		what := fmt.Sprintf("bit at %d of %s (%s)", at, p.name, p.what)
		found, err := Check(context.Background(), fs, "data", CheckOptions{})
		if err != nil {
			t.Fatalf("%s: check: %v", what, err)
		}
		if found.Faults > 0 {
			named[p.what]++
			if f := found.First[0]; f.File != p.name || f.Offset > at || p.to < f.Offset {
				t.Errorf("%s: check names %v", what, &f)
			}
		} else if !strings.Contains(p.what, "journal") { // it may be behind the last record
			t.Errorf("%s: check finds nothing", what)
		}
		for _, how := range []string{"opened", "index lost", "repaired"} {
			fs := fs.CrashClone(vfs.CrashCloneCfg{})
			switch how {
			case "index lost":
				if err := fs.RemoveAll("data/index"); err != nil {
					t.Fatal(err)
				}
			case "repaired":
				if c, err := Check(context.Background(), fs, "data", CheckOptions{Repair: true}); err != nil || !c.Repaired {
					t.Fatalf("%s: repair: %+v, %v", what, c, err)
				}
			}
			w.checkDamaged(fs, before, p, what+", "+how, how == "opened")
		}
	}
	for _, what := range []string{"label", "frame", "header", "padding", "payload", "end padding", "journal", "second journal", "identity"} {
		if named[what] == 0 {
			t.Errorf("no damage of %s was named: %v", what, named)
		}
	}
}

// checkDamaged holds a directory with damage of one part against what may be lost by it.
func (w *world) checkDamaged(fs vfs.FS, before state, p part, what string, indexed bool) {
	w.t.Helper()
	d, err := New(context.Background(), worldOptions(fs))
	if err != nil {
		w.t.Errorf("%s: open: %v", what, err)
		return
	}
	defer d.Close()
	told := map[uint64]tier.Recovered{}
	if err := d.Recover(context.Background(), func(batch []tier.Recovered, owners []tier.Owner) error {
		for i, x := range batch {
			told[x.Extent.Seq] = x
			owners[i] = tier.Owner{Extent: 1}
		}
		return nil
	}); err != nil {
		w.t.Errorf("%s: recover: %v", what, err)
		return
	}
	for id, x := range w.things {
		c, ok := told[id]
		switch {
		case before.ended[id] && ok:
			w.t.Errorf("%s: extent %d is back", what, id)
		case !before.acked[id] || x.ending:
		case !ok && id != p.id:
			w.t.Errorf("%s: extent %d is gone", what, id)
		case !ok && indexed:
			w.t.Errorf("%s: the index has lost extent %d", what, id)
		case ok && id != p.id:
			w.intact(d, x, c, what)
		case ok:
			w.touched(d, x, c, p, what)
		}
	}
}

// touched reads the extent whose record was damaged: it is whole, or its own sums tell that it is not.
func (w *world) touched(d *Driver, x *thing, c tier.Recovered, p part, what string) {
	got := make([]byte, x.bytes)
	if err := transfer(d, tier.Op{Region: c.Region, Memory: got}); err != nil {
		w.t.Errorf("%s: read: %v", what, err)
		return
	}
	var h page.Header
	err := checkRegion(&h, got)
	if err == nil {
		sums, _ := page.AppendSumsOf(nil, got[len(got)-int(h.PayloadBytes):], h.View, h.CellBytes)
		if !bytes.Equal(sums, h.SumsLE) {
			err = errors.New("sums")
		}
	}
	if (err == nil) != p.harmless {
		w.t.Errorf("%s: harmless is %v, the region says %v", what, p.harmless, err)
	}
}

// TestCase_C60_OneFlippedBitOfTheIndex flips bits all over the index's files: all extents are there, nothing that ended is.
func TestCase_C60_OneFlippedBitOfTheIndex(t *testing.T) {
	if testing.Short() {
		t.Skip("long, and one goroutine's")
	}
	if inChild(t) {
		return
	}
	rng := newRand(t)
	mem, w := settled(t, rng)
	before := w.state()
	names, err := mem.List("data/index")
	if err != nil {
		t.Fatal(err)
	}
	rebuilt := 0
	for _, name := range names {
		f, err := mem.Open("data/index/" + name)
		if err != nil {
			t.Fatal(err)
		}
		info, err := f.Stat()
		if err != nil {
			t.Fatal(err)
		}
		size := info.Size()
		if err := errors.Join(f.Close(), err); err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		for range min(size, 40) {
			fs := mem.CrashClone(vfs.CrashCloneCfg{})
			at := rng.Int64N(size)
			flip(t, fs, "data/index/"+name, at, rng.IntN(8))
			what := fmt.Sprintf("bit at %d of index/%s", at, name)
			if _, err := Check(context.Background(), fs.CrashClone(vfs.CrashCloneCfg{}), "data", CheckOptions{}); err != nil {
				t.Errorf("%s: check: %v", what, err)
			}
			d, err := New(context.Background(), worldOptions(fs))
			if err != nil {
				t.Errorf("%s: open: %v", what, err)
				continue
			}
			w.check(d, before, what)
			if d.Recovery().Rebuilt != "" {
				rebuilt++
			}
			if err := d.Close(); err != nil {
				t.Errorf("%s: close: %v", what, err)
			}
		}
	}
	if rebuilt == 0 {
		t.Error("no damage led to a rebuild")
	}
}
