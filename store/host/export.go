package host

import (
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"slices"
	"unsafe"

	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/shm"
	"github.com/quire-kv/quire/store/tier"
)

// ErrNotShared says that nobody may map a slab: it is mixed, it is gone, or this system cannot hand it out.
var ErrNotShared = errors.New("host tier: the slab is not shared")

// export is what clients on this host may be given of one slab: read-only descriptors of its memory and of its
// generations (package shm), which lie in memory of their own.
type export struct {
	number     uint64
	data, gens int    // descriptors, read only, of this process
	memory     []byte // of the generations
	shm.Generations
}

// firstNumber is random, so that no number of this Driver is one of another's that a client may still have mapped.
func firstNumber() uint64 {
	var b [8]byte
	rand.Read(b[:]) // never fails
	return binary.LittleEndian.Uint64(b[:]) >> 1
}

// generationBytes is what the generations of a slab hold.
func generationBytes(slots int64) int64 { return tier.RoundUp(shm.GenerationBytes(slots)) }

// Shared is where bytes of a tier lie for those who have their slab mapped, and of which life of slot and slab they
// are.
type Shared struct {
	Number         uint64 // of the slab, never used again, by another Driver neither
	Handle         uint32
	Offset         int64
	SlotGeneration uint64
	SlabGeneration uint64
}

// Locate finds memory of a region that the caller knows to stay allocated; ok is false when its slab is not shared.
// It takes no lock.
func (d *Driver) Locate(mem []byte) (Shared, bool) {
	at := uintptr(unsafe.Pointer(unsafe.SliceData(mem)))
	slabs := *d.exported.Load()
	i, found := slices.BinarySearchFunc(slabs, at, func(s *slab, at uintptr) int { return cmp.Compare(s.base(), at) })
	if !found {
		i--
	}
	if i < 0 || len(mem) == 0 {
		return Shared{}, false
	}
	s := slabs[i]
	off := int64(at - s.base())
	if off+int64(len(mem)) > int64(len(s.slots))*s.classBytes {
		return Shared{}, false
	}
	e := s.mapping.export
	out := Shared{Number: e.number, Handle: s.handle, Offset: off}
	out.SlotGeneration, out.SlabGeneration = e.At(uint64(off))
	return out, true
}

// Slab is what a client that may read its namespace can be given. The descriptors are the caller's to close.
type Slab struct {
	Number            uint64
	Data, Generations int // read only
}

// Export duplicates the descriptors of a slab for one client. The caller knows a region in it that stays allocated,
// and that the client may read all of the slab's namespace. ErrNotShared.
func (d *Driver) Export(handle uint32) (Slab, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.slab(handle)
	if s == nil || d.closed || s.mapping.export == nil {
		return Slab{}, ErrNotShared
	}
	return s.mapping.export.duplicate()
}

// Invalidate makes every client that reads pages of a namespace's epoch notice, after its last byte, that it may not
// use them: the namespace was retired or purged, or a waiver of it ended. Names given out later are good again. Memory
// that was named before is given back as soon as it is empty.
func (d *Driver) Invalidate(id page.NamespaceID, e page.Epoch) {
	var gone []*mapping
	d.mu.Lock()
	for _, s := range *d.table.Load() {
		if s == nil || s.class.key.Namespace != id || s.class.key.Epoch != e || mixed(s.class.key) {
			continue
		}
		if x := s.mapping.export; x != nil {
			x.RaiseSlab()
		}
		s.outdated = true
		if s.live == 0 {
			gone = append(gone, d.retire(s))
		}
	}
	d.mu.Unlock()
	d.discard(gone...)
}

// listExported keeps the table that Locate searches. Under mu.
func (d *Driver) listExported() {
	var list []*slab
	for _, s := range *d.table.Load() {
		if s != nil && s.mapping.export != nil {
			list = append(list, s)
		}
	}
	slices.SortFunc(list, func(a, b *slab) int { return cmp.Compare(a.base(), b.base()) })
	d.exported.Store(&list)
}

func (s *slab) base() uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(s.mem))) }

// outdate ends the life of slot i for those who read it. Under mu.
func (s *slab) outdate(i uint32) {
	if e := s.mapping.export; e != nil {
		e.RaiseSlot(i)
	}
}
