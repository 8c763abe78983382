package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store"
	"github.com/quire-kv/quire/store/core"
	"github.com/quire-kv/quire/store/page"
)

// writer publishes whole pages straight into a store, as a publisher of the same process does.
type writer struct {
	store    *store.Store
	caller   store.Caller
	family   page.Family
	geometry core.Geometry
	prov     []byte
	header   page.Header
	begin    []core.BeginPage
	encoded  []byte
	durable  bool // committed means on disk
}

// source is the payload of a page with its sums, which its writer takes; the store takes its own while it copies.
type source struct {
	payload []byte
	sums    []byte
}

func newWriter(s *store.Store, id page.NamespaceID, e page.Epoch, g page.GroupID, provenance []byte, pageBytes int) *writer {
	geometry := core.Geometry{
		Heads: benchHeads, Layers: benchLayers, CellBytes: uint32(pageBytes / (benchHeads * benchLayers)),
		Tokens: benchTokens, Grade: page.Elements,
	}
	return &writer{
		store: s, geometry: geometry, prov: provenance,
		caller: store.Caller{Principal: s.Intern("bench"), Provenance: s.Provenance(provenance)},
		family: page.Family{Namespace: id, Epoch: e, Group: g},
		header: page.Header{
			ParentUnknown: true, View: geometry.Full(), Heads: geometry.Heads, Layers: geometry.Layers, CellBytes: geometry.CellBytes,
			Tokens: geometry.Tokens, Grade: geometry.Grade, PayloadBytes: uint64(pageBytes), Provenance: provenance,
			Extent: page.ExtentID{Writer: [16]byte{1}},
		},
	}
}

func (w *writer) sourceOf(payload []byte) (source, error) {
	sums, err := page.AppendSumsOf(nil, payload, w.geometry.Full(), w.geometry.CellBytes)
	return source{payload, sums}, err
}

// publish begins, writes and commits one chain of whole pages; all of them must be taken.
func (w *writer) publish(ctx context.Context, keys []byte, sources []source) error {
	w.begin = w.begin[:0]
	for range sources {
		w.begin = append(w.begin, core.BeginPage{PayloadBytes: w.header.PayloadBytes})
	}
	w.begin[0].Link = core.LinkRoot
	b, why, err := w.store.Begin(ctx, w.caller, store.BeginRequest{
		Run: core.Run{Family: w.family, Hashes: keys}, Pages: w.begin, TTL: time.Minute, Durable: w.durable,
	})
	if err = joined(why, err); err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	commits := make([]store.CommitPage, len(sources))
	w.encoded = w.encoded[:0]
	for i := range sources {
		if r := b.Pages[i]; r.Outcome != core.Granted {
			return fmt.Errorf("begin of page %d: outcome %d: %w", i, r.Outcome, r.Reason)
		}
		if why := w.store.Write(w.caller, w.family.Namespace, w.family.Epoch, b.Token, i, 0, 0, sources[i].payload); why != reason.None {
			return fmt.Errorf("write page %d: %w", i, why)
		}
		header, err := w.headerOf(keys[i*hashBytes:(i+1)*hashBytes], &sources[i])
		if err != nil {
			return err
		}
		commits[i] = store.CommitPage{Page: uint32(i), Headers: [][]byte{header}}
	}
	results, why, err := w.store.Commit(ctx, w.caller, w.family.Namespace, w.family.Epoch, b.Token, commits)
	if err = joined(why, err); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	for i, r := range results.Pages {
		if r.Outcome != core.Committed {
			return fmt.Errorf("commit of page %d: %w", i, r.Reason)
		}
	}
	return nil
}

// headerOf encodes the header of one page; the result is valid until the next publish.
func (w *writer) headerOf(key []byte, s *source) ([]byte, error) {
	hash, err := page.MakeHash(key)
	if err != nil {
		return nil, err
	}
	w.header.Key = page.Key{Family: w.family, Hash: hash}
	w.header.Extent.Seq++
	w.header.SetSums(s.sums)
	from := len(w.encoded)
	if w.encoded, err = w.header.AppendEncode(w.encoded); err != nil {
		return nil, fmt.Errorf("header: %w", err)
	}
	return w.encoded[from:], nil
}

// joined is the one error of a store's answer.
func joined(why reason.Reason, err error) error {
	if err == nil && why != reason.None {
		return why
	}
	return err
}
