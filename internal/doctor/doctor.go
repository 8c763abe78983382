// Package doctor looks at a data directory that no server has open, and at the machine, and explains what it finds: what
// is damaged and what that costs, and what would make the server faster.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/quire-kv/quire/namespace"
	"github.com/quire-kv/quire/namespace/pebbleregistry"
	"github.com/quire-kv/quire/store/disk"
)

// Directories of the server beneath its data directory.
const (
	registryDir = "registry"
	pagesDir    = "pages"
)

// Options of Examine.
type Options struct {
	DataDir  string                  // of the server
	Repair   bool                    // make anew what can be: the index, and bookkeeping of the disk tier
	Progress func(done, total int64) // bytes of segments read; nil: nobody wants to know
}

// Result is how a check ended.
type Result string

// Results of a check.
const (
	OK      Result = "ok"
	Note    Result = "note"    // works, but not as well as it could
	Damaged Result = "damaged" // see Faults, or the detail
	InUse   Result = "in use"  // another process has it, so it was not looked at
	Skipped Result = "skipped" // there is nothing, or something before it must be well first
)

// Finding is what one check found, in words.
type Finding struct {
	Check  string
	Result Result
	Detail string
}

// Fault is one damaged place of the disk tier, and what it costs.
type Fault struct {
	File                string // beneath the data directory
	Offset              int64
	Part                string
	Expected, Got, Cost string
}

// Disk is what the disk tier holds.
type Disk struct {
	Segments, Journals int
	Bytes              int64 // of segments
	Records, Live      int64 // regions written, and of them live
	Torn               int64 // writes that a crash cut short
	Faults             int64
	First              []Fault // at most a hundred
	Repaired           bool
}

// Report is what Examine found.
type Report struct {
	Findings []Finding
	Disk     *Disk // nil: there is none, or it could not be looked at
}

// Has reports whether a check ended so.
func (r *Report) Has(result Result) bool {
	for _, f := range r.Findings {
		if f.Result == result {
			return true
		}
	}
	return false
}

func (r *Report) add(check string, result Result, format string, args ...any) {
	r.Findings = append(r.Findings, Finding{check, result, fmt.Sprintf(format, args...)})
}

// Examine checks registry, disk tier and machine. fs.ErrNotExist: there is no such directory. Faults are no error.
func Examine(ctx context.Context, o Options) (*Report, error) {
	if info, err := os.Stat(o.DataDir); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	} else if !info.IsDir() {
		return nil, fmt.Errorf("data directory: %s is no directory", o.DataDir)
	}
	r := &Report{}
	if err := r.registry(ctx, &o); err != nil {
		return nil, err
	}
	if err := r.disk(ctx, &o); err != nil {
		return nil, err
	}
	r.machine()
	return r, nil
}

// exists tells whether there is such a directory.
func exists(dir string) (bool, error) {
	_, err := os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

const lostRegistry = "the server does not start; without a copy of this directory, namespaces, waivers, grants, tokens and all pages on disk are lost with it"

// registry opens the registry as a server does.
func (r *Report) registry(ctx context.Context, o *Options) error {
	dir := filepath.Join(o.DataDir, registryDir)
	if there, err := exists(dir); err != nil {
		return err
	} else if !there {
		r.add("registry", Skipped, "none yet: no server has used this data directory")
		return nil
	}
	backend, err := pebbleregistry.Open(dir, pebbleregistry.Options{})
	if errors.Is(err, pebbleregistry.ErrInUse) {
		r.add("registry", InUse, "%v", err)
		return nil
	} else if err != nil {
		r.add("registry", Damaged, "%v: %s", err, lostRegistry)
		return nil
	}
	registry, err := namespace.NewRegistry(ctx, backend, namespace.Options{})
	if err != nil {
		_ = backend.Close() // the first error counts
		r.add("registry", Damaged, "%v: %s", err, lostRegistry)
		return ctx.Err()
	}
	states := map[namespace.State]int{}
	all := registry.List(namespace.Principal{Name: "doctor", Role: namespace.RoleOperator}, "", true)
	for _, n := range all {
		states[n.State]++
	}
	if err := registry.Close(); err != nil {
		r.add("registry", Damaged, "close: %v", err)
		return nil
	}
	r.add("registry", OK, "%d namespaces: %d active, %d draining, %d retired", len(all),
		states[namespace.Active], states[namespace.Draining], states[namespace.Retired])
	return nil
}

// disk reads all of the disk tier.
func (r *Report) disk(ctx context.Context, o *Options) error {
	dir := filepath.Join(o.DataDir, pagesDir)
	there, err := exists(dir)
	switch {
	case err != nil:
		return err
	case !there:
		r.add("disk tier", Skipped, "none: the server runs without one, or has not yet begun")
		return nil
	case r.Has(InUse):
		r.add("disk tier", Skipped, "its server runs: stop it, or let it look by 'quire scrub'")
		return nil
	}
	c, err := disk.Check(ctx, vfs.Default, dir, disk.CheckOptions{Repair: o.Repair, Progress: o.Progress})
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, disk.ErrInUse):
		r.add("disk tier", InUse, "%v", err)
		return nil
	case err != nil:
		r.add("disk tier", Damaged, "%v", err)
	}
	d := &Disk{Segments: c.Segments, Journals: c.Journals, Bytes: c.Bytes, Records: c.Records, Live: c.Regions,
		Torn: c.Torn, Faults: c.Faults, Repaired: c.Repaired}
	for i := range c.First {
		d.First = append(d.First, faultOf(&c.First[i]))
	}
	r.Disk = d
	if err != nil {
		return nil
	}
	what := fmt.Sprintf("%d regions live of %d written in %d segments, %d journals", d.Live, d.Records, d.Segments, d.Journals)
	if d.Torn > 0 {
		what += fmt.Sprintf("; %d writes that a crash cut short, never acknowledged", d.Torn)
	}
	switch {
	case d.Faults == 0:
		r.add("disk tier", OK, "%s", what)
	case d.Repaired:
		r.add("disk tier", OK, "%s; %d faults, repaired: what was made anew is sound, what the faults cost stays lost", what, d.Faults)
	default:
		r.add("disk tier", Damaged, "%s; %d faults", what, d.Faults)
	}
	return nil
}

// faultOf says what a fault costs: that depends on where it is.
func faultOf(f *disk.Fault) Fault {
	cost := "the page it is part of: a miss, and the page can be published again"
	switch {
	case f.What == "index":
		cost = "nothing: the index is made anew from the segments, at the next start or by --repair"
	case f.What == "padding":
		cost = "nothing: no page has bytes there"
	case f.What == "identity", f.What == "label":
		cost = "nothing: other files say the same"
	case strings.HasSuffix(f.File, ".jrn"):
		cost = "nothing while the other half of the file or the index is sound; without both, what its records deleted comes back"
	case f.What == "record":
		cost = "nothing while the index is sound; without it, and by --repair, the page that it holds a part of: a miss"
	}
	return Fault{File: filepath.Join(pagesDir, f.File), Offset: f.Offset, Part: f.What, Expected: f.Want, Got: f.Got, Cost: cost}
}
