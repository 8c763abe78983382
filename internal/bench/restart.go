package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/quire-kv/quire/store/client"
)

// restartGoal is what a million pages may take, from exec to the last right answer.
const (
	restartGoal  = 5 // seconds
	restartPages = 1_000_000
	restartKeys  = 8192 // of a call
)

// diskBytesOfSmallPage is a header and a payload of pageUnit.
const diskBytesOfSmallPage = 2 * pageUnit

// indexBytesOfPage is what the server is told to keep for each page: the bounds of a page and its copies.
const indexBytesOfPage = 192

// benchRestart stores many small pages on disk, ends the server's process, and starts another one on the same
// directory: how long until it has answered for all pages. The kernel's page cache stays warm.
func benchRestart(ctx context.Context, o *Options) (_ []Figure, err error) {
	disk := max(int64(o.Resident)*diskBytesOfSmallPage*5/4, 256*mib)
	dir, remove, err := o.workDir(disk)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, remove()) }()
	index := max(int64(o.Resident)*indexBytesOfPage, 8*mib)
	n := Node{MemoryBytes: max(index, 256*mib), MetadataBytes: index, DiskBytes: disk, Dir: dir, NoWriteBehind: true}
	r := &restarting{o: o, node: n}
	defer func() { err = errors.Join(err, r.close()) }()
	if err := r.fill(ctx); err != nil {
		return nil, err
	}
	var s sheet
	err = o.rounds(ctx, func(measured bool) error { return r.round(ctx, &s, measured) })
	if err != nil {
		return nil, err
	}
	goals := map[string]goal{"pages_missing": atMost(0)}
	if o.Resident == restartPages {
		goals["restart"] = atMost(restartGoal)
	}
	return s.figures(goals), nil
}

// restarting is the server that is ended and started.
type restarting struct {
	o    *Options
	node Node
	keys [][]byte // of a call each: all that are stored
	t    *target  // nil between two
}

func (r *restarting) open(ctx context.Context) (err error) {
	o := *r.o
	o.Remote = client.Options{BatchKeys: restartKeys}
	r.t, err = openTarget(ctx, &o, r.node)
	return err
}

func (r *restarting) fill(ctx context.Context) error {
	if err := r.open(ctx); err != nil {
		return err
	}
	f := r.t.fillOf(r.o)
	f.Durable = true
	if err := r.t.server(ctx, order{Fill: f}); err != nil {
		return err
	}
	for at := 0; at < r.o.Resident; at += restartKeys {
		var keys []byte
		for i := range min(restartKeys, r.o.Resident-at) {
			keys = appendKey(keys, storedKeys, uint64(at+i))
		}
		r.keys = append(r.keys, keys)
	}
	return nil
}

// round ends the server and starts it again.
func (r *restarting) round(ctx context.Context, s *sheet, measured bool) error {
	if err := r.end(); err != nil {
		return err
	}
	begun := time.Now()
	if err := r.open(ctx); err != nil {
		return err
	}
	serving, missing := time.Since(begun), 0
	for _, keys := range r.keys {
		p, err := r.t.session.Exists(ctx, r.t.run(keys), 0)
		if err != nil {
			return fmt.Errorf("exists: %w", err)
		}
		for i := range len(keys) / hashBytes {
			if !p.Has(i) {
				missing++
			}
		}
	}
	all := time.Since(begun)
	if _, err := r.t.stateNow(ctx); err != nil {
		return err
	}
	if measured {
		s.add("restart", "s", all.Seconds())
		s.add("until_it_serves", "s", serving.Seconds())
		s.add("exists_over_all", "s", (all - serving).Seconds())
		s.add("pages_missing", "", float64(missing))
		s.add("server_rss_per_page", "B", float64(r.t.usage.RSSBytes)/float64(r.o.Resident))
	}
	return nil
}

// end lets the server's process end: by SIGKILL, or in order.
func (r *restarting) end() error {
	t := r.t
	r.t = nil
	if t.child == nil {
		return errors.New("restart needs a server in a process of its own")
	}
	if r.o.Orderly {
		return t.close()
	}
	t.child.kill()
	t.child = nil
	return t.close()
}

func (r *restarting) close() error {
	if r.t == nil {
		return nil
	}
	return r.t.close()
}
