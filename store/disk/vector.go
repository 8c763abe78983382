package disk

import (
	"github.com/quire-kv/quire/store/page"
)

const (
	// vectorBytes is what one write takes: enough to keep a device busy.
	vectorBytes = 8 << 20
	// scratchBytes is for what is not written from the caller's memory: the block with the frame, and the last one.
	scratchBytes = 1 << 20
	bounceBytes  = 1 << 20
)

// vector gathers neighbouring records for one write. The first block of each is a copy with the frame in it, and so is
// the last if the region ends within; the rest is written from the caller's memory.
type vector struct {
	items   []*item
	parts   [][]byte
	at      int64 // of the first part in the file
	bytes   int64
	scratch []byte
	used    int  // of scratch
	run     int  // where the run of scratch that ends the parts began; -1: they end otherwise
	bounced bool // the last item's memory is not aligned: nothing can follow
	bounce  []byte
}

func (v *vector) reset() {
	clear(v.items)
	clear(v.parts)
	*v = vector{items: v.items[:0], parts: v.parts[:0], scratch: v.scratch, bounce: v.bounce, run: -1}
}

// continues reports whether it can be written with what was gathered.
func (v *vector) continues(it *item) bool {
	if len(v.items) == 0 {
		return true
	}
	return v.items[0].s == it.s && v.at+v.bytes == int64(it.block)*blockBytes && v.bytes < vectorBytes &&
		v.used+page.PayloadOffset(it.header.EncodedBytes())+blockBytes <= scratchBytes
}

// take is n bytes of scratch at the end of the parts.
func (v *vector) take(n int) []byte {
	if v.scratch == nil {
		v.scratch = aligned(scratchBytes)
		v.run = -1
	}
	b := v.scratch[v.used : v.used+n]
	if v.run < 0 {
		v.run = v.used
		v.parts = append(v.parts, nil)
	}
	v.used += n
	v.parts[len(v.parts)-1] = v.scratch[v.run:v.used]
	v.bytes += int64(n)
	return b
}

// add appends a record.
func (v *vector) add(it *item, f *frame, secret uint64) {
	if len(v.items) == 0 {
		v.at = int64(it.block) * blockBytes
	}
	v.items = append(v.items, it)
	payload := page.PayloadOffset(int(f.bodyBytes))
	head := v.take(payload)
	clear(head[frameBytes+copy(head[frameBytes:], it.op.Memory[frameBytes:frameBytes+int(f.bodyBytes)]):])
	f.seal(head, secret)
	rest := it.op.Memory[payload:]
	whole := len(rest) &^ (blockBytes - 1)
	if it.s.file.direct && !isAligned(rest) {
		v.bounced = true
		v.bytes += int64(len(rest)+blockBytes-1) &^ (blockBytes - 1)
		return
	}
	if whole > 0 {
		v.parts = append(v.parts, rest[:whole])
		v.run = -1
		v.bytes += int64(whole)
	}
	if whole < len(rest) {
		tail := v.take(blockBytes)
		clear(tail[copy(tail, rest[whole:]):])
	}
}

// write writes what was gathered.
func (v *vector) write(f *writeFile) error {
	if err := f.writeParts(v.parts, v.at); err != nil || !v.bounced {
		return err
	}
	it := v.items[len(v.items)-1]
	payload := page.PayloadOffset(it.header.EncodedBytes())
	at := int64(it.block)*blockBytes + int64(payload)
	if v.bounce == nil {
		v.bounce = aligned(bounceBytes)
	}
	for rest := it.op.Memory[payload:]; len(rest) > 0; {
		n := copy(v.bounce, rest)
		rest = rest[n:]
		end := (n + blockBytes - 1) &^ (blockBytes - 1)
		clear(v.bounce[n:end])
		if err := f.writeParts([][]byte{v.bounce[:end]}, at); err != nil {
			return err
		}
		at += int64(end)
	}
	return nil
}
