// Package storetest helps tests to drive a store without a network: a namespace with a small geometry, pages whose
// bytes follow from their key, so that a wrong byte is noticed, and publish and fetch in one call.
package storetest

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/internal/memfs"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store"
	"github.com/quire-kv/quire/store/core"
	"github.com/quire-kv/quire/store/disk"
	"github.com/quire-kv/quire/store/host"
	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/tier"
)

// Options of a Fixture. Zero values are defaults.
type Options struct {
	CapacityBytes int64         // of the host tier; default 64 MiB
	Clock         clock.Clock   // default the system's
	Shards        int           // default 4
	Geometry      core.Geometry // default 4 heads x 4 layers, 4 KiB cells: 64 KiB pages
	Core          core.Options
	Limits        core.Limits
	Disk          *Disk // nil: no disk tier
	NoWriteBehind bool
	NewPolicy     func(shard int) evict.Policy // default the store's
	PrefillFLOPS  float64
}

// Disk is a disk tier of a Fixture.
type Disk struct {
	FS            vfs.FS      // default one in memory
	Dir           string      // default "pages"
	CapacityBytes int64       // default 256 MiB
	SegmentBytes  int64       // default the tier's
	Clock         clock.Clock // of the tier; default the system's
	Wrap          func(tier.Durable) tier.Durable
}

// Fixture is a store with one namespace.
type Fixture struct {
	Store     *store.Store
	Host      *host.Driver
	Disk      *disk.Driver // nil: none
	Recovery  store.Recovery
	Namespace store.Namespace
	Group     page.GroupID
	Geometry  core.Geometry
	Caller    store.Caller
	Canonical []byte                    // of the caller's provenance
	Declares  func(hash []byte) float64 // what Publish declares that a page costs; nil: nothing

	options Options
	seq     atomic.Uint64
	writer  [16]byte
}

// New starts a store that ends with the test.
func New(t testing.TB, o Options) *Fixture {
	t.Helper()
	if o.CapacityBytes == 0 {
		o.CapacityBytes = 64 << 20
	}
	if o.Geometry.Heads == 0 {
		o.Geometry = core.Geometry{Heads: 4, Layers: 4, CellBytes: 4 << 10, Tokens: 16, Grade: page.Elements}
	}
	if d := o.Disk; d != nil {
		d.FS = cmp.Or[vfs.FS](d.FS, memfs.New())
		d.Dir, d.CapacityBytes = cmp.Or(d.Dir, "pages"), cmp.Or(d.CapacityBytes, 256<<20)
	}
	f := &Fixture{options: o, Geometry: o.Geometry, Group: page.GroupID{1}, Canonical: []byte("engine=test")}
	f.writer[0] = 7
	f.Namespace = store.Namespace{State: core.NamespaceState{
		ID: page.NamespaceID(sha256.Sum256([]byte(t.Name()))), Epoch: 1, Life: core.Active, Tenant: 1,
		Groups: map[page.GroupID]core.Geometry{f.Group: o.Geometry}, HashBytes: 32,
	}}
	if err := f.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Stop(); err != nil {
			t.Error(err)
		}
	})
	return f
}

// Start starts the store over its tiers and takes over what the disk tier kept.
func (f *Fixture) Start(ctx context.Context) error {
	o := &f.options
	drv, err := host.New(host.Options{CapacityBytes: o.CapacityBytes})
	if err != nil {
		return err
	}
	so := store.Options{Clock: o.Clock, Shards: o.Shards, Core: o.Core, Limits: o.Limits, NoWriteBehind: o.NoWriteBehind, NewPolicy: o.NewPolicy, PrefillFLOPS: o.PrefillFLOPS}
	so.Tiers[evict.Host] = drv
	if d := o.Disk; d != nil {
		opened, err := disk.New(ctx, disk.Options{FS: d.FS, Dir: d.Dir, CapacityBytes: d.CapacityBytes, SegmentBytes: d.SegmentBytes, BatchBytes: o.CapacityBytes / 8, Clock: d.Clock})
		if err != nil {
			drv.Close()
			return err
		}
		f.Disk = opened
		var durable tier.Durable = opened
		if d.Wrap != nil {
			durable = d.Wrap(durable)
		}
		so.Tiers[evict.Disk] = durable
	}
	if f.Store, err = store.New(so); err != nil {
		return err
	}
	f.Host = drv
	f.Store.SetNamespace(f.Namespace)
	f.Caller = store.Caller{Principal: f.Store.Intern("engine"), Provenance: f.Store.Provenance(f.Canonical)}
	f.Recovery, err = f.Store.Recover(ctx)
	return err
}

// Stop ends the store in order. Start begins another life.
func (f *Fixture) Stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return errors.Join(f.Store.Flush(ctx), f.Store.Close(ctx))
}

// Restart is Stop and Start.
func (f *Fixture) Restart(t testing.TB) {
	t.Helper()
	if err := errors.Join(f.Stop(), f.Start(t.Context())); err != nil {
		t.Fatal(err)
	}
}

// WithGroup is the same store and namespace seen through another of its groups.
func (f *Fixture) WithGroup(g page.GroupID, geo core.Geometry) *Fixture {
	return &Fixture{
		Store: f.Store, Host: f.Host, Disk: f.Disk, Namespace: f.Namespace, Group: g, Geometry: geo, Caller: f.Caller,
		Canonical: f.Canonical, writer: [16]byte{8},
	}
}

// WithTenant is the same store seen through a namespace of another tenant.
func (f *Fixture) WithTenant(name string) *Fixture {
	n := f.Namespace
	n.State.ID, n.State.Tenant = page.NamespaceID(sha256.Sum256([]byte(name))), f.Store.Tenant(name)
	f.Store.SetNamespace(n)
	return &Fixture{
		Store: f.Store, Host: f.Host, Disk: f.Disk, Namespace: n, Group: f.Group, Geometry: f.Geometry,
		Caller:    store.Caller{Principal: f.Store.Intern(name), Provenance: f.Caller.Provenance},
		Canonical: f.Canonical, writer: [16]byte{9, name[0]},
	}
}

// Family of plain requests.
func (f *Fixture) Family() page.Family {
	return page.Family{Namespace: f.Namespace.State.ID, Epoch: f.Namespace.State.Epoch, Group: f.Group}
}

// Chain is n packed hashes of a chain that name tells apart.
func Chain(name string, n int) []byte {
	var out []byte
	prev := sha256.Sum256([]byte(name))
	for range n {
		prev = sha256.Sum256(prev[:])
		out = append(out, prev[:]...)
	}
	return out
}

// Run of packed hashes.
func (f *Fixture) Run(hashes []byte) core.Run { return core.Run{Family: f.Family(), Hashes: hashes} }

// Fill writes the payload of view v of the page named hash: every 8 bytes follow from hash, head, layer and offset.
func (f *Fixture) Fill(dst []byte, hash []byte, v page.View, salt uint64) {
	seed := binary.LittleEndian.Uint64(hash) ^ salt
	i := 0
	for h := v.H0; h < v.H1; h++ {
		for l := v.L0; l < v.L1; l++ {
			x := seed ^ uint64(h)<<48 ^ uint64(l)<<32
			for b := 0; b < int(f.Geometry.CellBytes); b += 8 {
				x = x*6364136223846793005 + 1442695040888963407
				var w [8]byte
				binary.LittleEndian.PutUint64(w[:], x)
				i += copy(dst[i:min(len(dst), i+min(8, int(f.Geometry.CellBytes)-b))], w[:])
			}
		}
	}
}

// Payload is Fill into a new buffer.
func (f *Fixture) Payload(hash []byte, v page.View, salt uint64) []byte {
	b := make([]byte, page.PayloadBytes(v, f.Geometry.CellBytes))
	f.Fill(b, hash, v, salt)
	return b
}

// Header is the encoded header of a payload.
func (f *Fixture) Header(hash []byte, v page.View, payload []byte) []byte {
	k, err := page.MakeHash(hash)
	if err != nil {
		panic(err)
	}
	g := &f.Geometry
	h := page.Header{
		Key: page.Key{Family: f.Family(), Hash: k}, ParentUnknown: true, Tokens: g.Tokens, View: v,
		Heads: g.Heads, Layers: g.Layers, CellBytes: g.CellBytes, Grade: g.Grade,
		PayloadBytes: uint64(len(payload)), Provenance: f.Canonical,
	}
	sums, err := page.AppendSumsOf(nil, payload, v, g.CellBytes)
	if err != nil {
		panic(err)
	}
	h.Extent = page.ExtentID{Writer: f.writer, Seq: f.seq.Add(1)}
	h.SetSums(sums)
	raw, err := h.AppendEncode(nil)
	if err != nil {
		panic(err)
	}
	return raw
}

// Publish begins, writes and commits view v (zero: whole) of each page of a chain whose first page is a root.
func (f *Fixture) Publish(ctx context.Context, c store.Caller, hashes []byte, v page.View, salt uint64) ([]store.PageResult, error) {
	return f.publish(ctx, c, hashes, v, salt, false)
}

// PublishDurable is Publish of what must survive a crash.
func (f *Fixture) PublishDurable(ctx context.Context, c store.Caller, hashes []byte, v page.View, salt uint64) ([]store.PageResult, error) {
	return f.publish(ctx, c, hashes, v, salt, true)
}

func (f *Fixture) publish(ctx context.Context, c store.Caller, hashes []byte, v page.View, salt uint64, durable bool) ([]store.PageResult, error) {
	if v.Empty() {
		v = f.Geometry.Full()
	}
	n := len(hashes) / 32
	pages := make([]core.BeginPage, n)
	for i := range pages {
		pages[i] = core.BeginPage{View: v, PayloadBytes: page.PayloadBytes(v, f.Geometry.CellBytes)}
		if f.Declares != nil {
			pages[i].DeclaredFLOPs = f.Declares(hashes[32*i : 32*i+32])
		}
	}
	pages[0].Link = core.LinkRoot
	b, why, err := f.Store.Begin(ctx, c, store.BeginRequest{Run: f.Run(hashes), Pages: pages, TTL: 10 * time.Second, Durable: durable})
	if err != nil {
		return nil, err
	}
	if why != reason.None {
		return nil, fmt.Errorf("begin: %w", why)
	}
	return f.finish(ctx, c, hashes, b, salt)
}

// finish writes and commits what a Begin granted.
func (f *Fixture) finish(ctx context.Context, c store.Caller, hashes []byte, b store.BeginResult, salt uint64) ([]store.PageResult, error) {
	ns := f.Namespace.State
	out := append([]store.PageResult(nil), b.Pages...)
	var commits []store.CommitPage
	for i, p := range b.Pages {
		if p.Outcome != core.Granted {
			continue
		}
		hash, cp := hashes[32*i:32*i+32], store.CommitPage{Page: uint32(i)}
		for g, v := range p.Grants {
			payload := f.Payload(hash, v, salt)
			for off := 0; off < len(payload); off += 10_000 {
				if why := f.Store.Write(c, ns.ID, ns.Epoch, b.Token, i, g, uint64(off), payload[off:min(off+10_000, len(payload))]); why != reason.None {
					out[i] = store.PageResult{Outcome: core.Refused, Reason: why}
				}
			}
			cp.Headers = append(cp.Headers, f.Header(hash, v, payload))
		}
		commits = append(commits, cp)
	}
	if commits == nil {
		return out, nil
	}
	rs, why, err := f.Store.Commit(ctx, c, ns.ID, ns.Epoch, b.Token, commits)
	if err != nil {
		return nil, err
	}
	if why != reason.None {
		return nil, fmt.Errorf("commit: %w", why)
	}
	for j, r := range rs.Pages {
		out[commits[j].Page] = r
	}
	return out, nil
}

// Fetch reads view v (zero: whole) of each page; payload i is nil where page i is a miss. Chunks are at most 64 KiB.
func (f *Fixture) Fetch(ctx context.Context, c store.Caller, hashes []byte, v page.View, lease core.LeaseID) ([]store.PageResult, [][]byte, error) {
	rd, why, err := f.Store.Read(ctx, c, store.ReadRequest{Run: f.Run(hashes), View: v, Lease: lease})
	if err != nil {
		return nil, nil, err
	}
	n := len(hashes) / 32
	results, payloads := make([]store.PageResult, n), make([][]byte, n)
	if why != reason.None {
		for i := range results {
			results[i] = store.PageResult{Outcome: core.Miss, Reason: why}
		}
		return results, payloads, nil
	}
	defer rd.Close()
	want := v
	if want.Empty() {
		want = f.Geometry.Full()
	}
	for i := range results {
		results[i] = rd.Page(i)
		if results[i].Outcome == core.OK {
			payloads[i], results[i] = f.assemble(rd, i, want)
		}
	}
	return results, payloads, nil
}

func (f *Fixture) assemble(rd *store.Reading, i int, want page.View) ([]byte, store.PageResult) {
	out := make([]byte, page.PayloadBytes(want, f.Geometry.CellBytes))
	for x := range rd.Extents(i) {
		var h page.Header
		if err := page.DecodeHeader(&h, rd.Header(i, x)); err != nil {
			return nil, store.PageResult{Outcome: core.Miss, Reason: reason.Corrupt}
		}
		chunks, why := rd.Chunks(i, x, 64<<10, nil)
		if why != reason.None {
			return nil, store.PageResult{Outcome: core.Miss, Reason: why}
		}
		full := page.RunsBetween(h.View, want, want, f.Geometry.CellBytes)
		for _, c := range chunks {
			for off := 0; off < len(c.Bytes); {
				dst, n, ok := full.Locate(int(c.Offset) + off)
				if !ok {
					panic("chunk outside of the view")
				}
				off += copy(out[dst:], c.Bytes[off:min(len(c.Bytes), off+n)])
			}
		}
	}
	if why := rd.Trailer(i); why != reason.None {
		return nil, store.PageResult{Outcome: core.Miss, Reason: why}
	}
	return out, rd.Page(i)
}

// RegionOf is the memory of extent x of a stored page, to be damaged by the test.
func (f *Fixture) RegionOf(t testing.TB, hash []byte, x int) []byte {
	t.Helper()
	h, err := page.MakeHash(hash)
	if err != nil {
		t.Fatal(err)
	}
	e := f.Store.Explain(t.Context(), &page.Key{Family: f.Family(), Hash: h})
	if x >= len(e.Parts) {
		t.Fatalf("page has %d extents", len(e.Parts))
	}
	r, ok := f.Host.Lookup(e.Parts[x].Place.Handle, e.Parts[x].Place.Offset)
	if !ok {
		t.Fatal("extent has no region")
	}
	return r.Memory
}
