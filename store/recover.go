package store

import (
	"context"
	"encoding/binary"
	"errors"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/store/core"
	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/tier"
)

// Recovery is what Recover found.
type Recovery struct {
	Extents uint64 // taken over from the disk tier
	Dropped uint64 // of namespaces that are gone or retired, expired, or beyond the bound of the index
}

// Recover takes over what the disk tier kept from earlier lives. Call it once, after SetNamespace was called for every
// namespace and before anything else; pages of namespaces that are not known are dropped.
func (s *Store) Recover(ctx context.Context) (Recovery, error) {
	var out Recovery
	if s.disk == nil {
		return out, nil
	}
	if err := s.enter(); err != nil {
		return out, err
	}
	defer s.leave()
	r := recovery{s: s, lineages: map[string][]uint16{}, shards: make([]recoveryShard, len(s.shards))}
	err := s.disk.d.Recover(ctx, func(batch []tier.Recovered, owners []tier.Owner) error {
		for i := range batch {
			r.sort(&batch[i], i)
		}
		for i := range r.shards {
			r.restore(i, owners)
		}
		for i := range owners {
			if owners[i] == (tier.Owner{}) {
				out.Dropped++
			} else {
				out.Extents++
			}
		}
		return ctx.Err()
	})
	for _, sh := range s.shards {
		s.step(sh, core.Settle{})
	}
	return out, err
}

// recovery sorts what comes by shard.
type recovery struct {
	s        *Store
	lineages map[string][]uint16 // by the note's text; nil: not readable
	shards   []recoveryShard
}

type recoveryShard struct {
	extents []core.RestoredExtent
	at      []int // their places in the batch
}

func (r *recovery) sort(x *tier.Recovered, at int) {
	f := &x.Key.Family
	sp := r.s.spaces.get(f.Namespace, f.Epoch)
	if sp == nil || sp.State.Life == core.Retired {
		return
	}
	members := r.lineage(x.Note.Lineage)
	if members == nil {
		return
	}
	sp.know(*f)
	link := core.LinkHash
	switch {
	case x.ParentUnknown:
		link = core.LinkUnknown
	case x.Parent == (page.Hash{}):
		link = core.LinkRoot
	}
	sh := &r.shards[r.s.shardOf(f.Namespace, f.Epoch).id]
	sh.extents = append(sh.extents, core.RestoredExtent{
		Place: placeOf(evict.Disk, x.Region), Family: *f, Hash: x.Key.Hash, Link: link, Parent: x.Parent, View: x.View,
		Lineage: members, Declared: x.DeclaredFLOPs, Expiry: x.Note.Expiry,
	})
	sh.at = append(sh.at, at)
}

func (r *recovery) restore(i int, owners []tier.Owner) {
	sh := &r.shards[i]
	if len(sh.extents) == 0 {
		return
	}
	r.s.stepFor(r.s.shards[i], core.Restore{Extents: sh.extents}, 0, func(e core.Effect) {
		if e, ok := e.(core.Restored); ok {
			for j, slot := range e.Extents {
				if slot != 0 {
					owners[sh.at[j]] = tier.Owner{Shard: uint32(i), Extent: slot}
				}
			}
		}
	})
	sh.extents, sh.at = sh.extents[:0], sh.at[:0]
}

// lineage interns the provenances that a note names.
func (r *recovery) lineage(text string) []uint16 {
	members, known := r.lineages[text]
	if known {
		return members
	}
	if names, err := decodeLineage(text); err == nil {
		for _, name := range names {
			p := r.s.Provenance([]byte(name))
			if p == 0 {
				members = nil
				break
			}
			members = append(members, p)
		}
	}
	r.lineages[text] = members
	return members
}

// A lineage in a note: for each provenance its length as a varint and its canonical text.

var errLineage = errors.New("store: lineage is cut short")

func decodeLineage(text string) (names []string, err error) {
	b := []byte(text)
	for len(b) > 0 {
		n, k := binary.Uvarint(b)
		if k <= 0 || n > uint64(len(b)-k) {
			return nil, errLineage
		}
		names, b = append(names, string(b[k:k+int(n)])), b[k+int(n):]
	}
	return names, nil
}

// lineage is the text of a set of provenances for a note.
func (t *nameTable) lineage(members []uint16) string {
	t.mu.RLock()
	defer t.mu.RUnlock()
	var b []byte
	for _, m := range members {
		name := ""
		if int(m) < len(t.byProv) {
			name = t.byProv[m]
		}
		b = append(binary.AppendUvarint(b, uint64(len(name))), name...)
	}
	return string(b)
}
