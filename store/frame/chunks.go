package frame

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/quire-kv/quire/store/rpc"
)

// A batch of chunks is one frame: all heads, then all bytes.
//
//	header | entry | entry ... | bytes of the first inline chunk | of the second ...
//
//	entry:  0            4             8
//	        | head bytes | chunk bytes | head | [reference]
//
// With the highest bit of head bytes set, a reference of 40 bytes follows the head and the chunk has no bytes here.
const (
	entryBytes = 8
	flagRef    = 1 << 31
)

// batch gathers chunks until they are worth a system call. The bytes stay where they are, lent under their pins.
type batch struct {
	head []byte     // room for the header, then the entries
	runs [][]byte   // of bytes
	data int        // in runs
	pins []*rpc.Pin // to be given back when runs are written
	v    [][]byte   // reused
}

func (b *batch) empty() bool { return len(b.head) == 0 }

func (b *batch) full() bool { return b.data >= windowBytes || len(b.head) >= windowHeadBytes }

// add takes in m. What it lends is given back by write or drop, or, for references, by who gets pin.
func (b *batch) add(m *rpc.Chunk) {
	if b.empty() {
		b.head = append(b.head, make([]byte, headerBytes)...)
	}
	n := uint32(len(m.Head))
	if m.Ref != nil {
		n |= flagRef
	}
	b.head = binary.LittleEndian.AppendUint32(b.head, n)
	b.head = binary.LittleEndian.AppendUint32(b.head, uint32(len(m.Body)))
	b.head = append(b.head, m.Head...)
	if m.Ref != nil {
		b.head = m.Ref.Append(b.head)
		return
	}
	if len(m.Body) == 0 {
		return
	}
	b.data += len(m.Body)
	if k := len(b.runs); k > 0 && adjacent(b.runs[k-1], m.Body) {
		b.runs[k-1] = unsafe.Slice(unsafe.SliceData(b.runs[k-1]), len(b.runs[k-1])+len(m.Body))
	} else {
		b.runs = append(b.runs, m.Body)
	}
	if m.Pin != nil {
		m.Pin.Lend()
		b.pins = append(b.pins, m.Pin)
	}
}

// adjacent says whether b lies right behind a in one piece of memory.
func adjacent(a, b []byte) bool {
	return cap(a) >= len(a)+len(b) && unsafe.SliceData(b) == unsafe.SliceData(a[:len(a)+1][len(a):])
}

// drop forgets everything and gives back what was lent.
func (b *batch) drop() {
	giveBack(b.pins)
	clear(b.runs)
	b.head, b.runs, b.pins, b.data = b.head[:0], b.runs[:0], b.pins[:0], 0
}

// write writes before, the batch and after, each possibly empty, in as few system calls as can be.
func (b *batch) write(c *conn, h header, before, after []byte) error {
	defer b.drop()
	b.v = append(b.v[:0], before)
	if !b.empty() {
		h.kind, h.flags, h.data = kindMessage, flagChunks, uint32(b.data)
		if _, err := c.seal(b.head, 0, h); err != nil {
			return err
		}
		b.v = append(append(b.v, b.head), b.runs...)
	}
	b.v = append(b.v, after)
	defer clear(b.v)
	return c.write(b.v)
}

// arriving is a batch of chunks on its way in.
type arriving struct {
	entries []byte // not yet delivered
	data    int    // bytes that are still to come
}

func (a *arriving) active() bool { return len(a.entries) > 0 }

func (a *arriving) begin(entries []byte, data int) error {
	if len(entries) == 0 {
		return fmt.Errorf("%w: a batch of no chunks", ErrProtocol)
	}
	a.entries, a.data = entries, data
	return nil
}

// next takes the next entry; ref is nil for an inline chunk.
func (a *arriving) next() (head []byte, chunkBytes int, ref *[rpc.RefBytes]byte, err error) {
	if len(a.entries) < entryBytes {
		return nil, 0, nil, fmt.Errorf("%w: an entry of %d bytes", ErrProtocol, len(a.entries))
	}
	n, chunk := binary.LittleEndian.Uint32(a.entries), binary.LittleEndian.Uint32(a.entries[4:])
	shared := n&flagRef != 0
	n &^= flagRef
	want := uint64(n)
	if shared {
		want += rpc.RefBytes
	}
	rest := a.entries[entryBytes:]
	if want > uint64(len(rest)) || chunk > maxDataBytes || !shared && int(chunk) > a.data {
		return nil, 0, nil, fmt.Errorf("%w: a head of %d and a chunk of %d bytes, with %d and %d left", ErrProtocol, n, chunk, len(rest), a.data)
	}
	head, rest = rest[:n:n], rest[n:]
	if shared {
		ref, rest = (*[rpc.RefBytes]byte)(rest), rest[rpc.RefBytes:]
	} else {
		a.data -= int(chunk)
	}
	if a.entries = rest; len(rest) == 0 && a.data != 0 {
		return nil, 0, nil, fmt.Errorf("%w: %d bytes of data that no chunk has", ErrProtocol, a.data)
	}
	return head, int(chunk), ref, nil
}

// deliver hands the next chunk to m: a *rpc.Received, or the whole message. shared says that it came by reference.
func (a *arriving) deliver(c *conn, m any) (shared bool, err error) {
	head, n, raw, err := a.next()
	if err != nil {
		return false, err
	}
	var body []byte
	if raw != nil {
		c.ref = rpc.RefOf(raw)
		var done func()
		if body, done, err = c.resolve(n); err != nil {
			return false, err
		}
		defer done()
	}
	r, ok := m.(*rpc.Received)
	if !ok {
		return raw != nil, c.joined(m, head, body, n)
	}
	if err := r.ReadHead(head); err != nil {
		return false, fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	if r.Ref = nil; raw != nil {
		r.Ref = &c.ref
	}
	if err := r.Begin(n); err != nil {
		return false, err
	}
	if raw != nil && n > 0 {
		return true, r.Chunk(body)
	}
	return raw != nil, c.receive(r, n)
}

func (c *conn) resolve(n int) (b []byte, done func(), err error) {
	if c.sharing == nil {
		return nil, nil, fmt.Errorf("%w: a reference where no memory is shared", ErrProtocol)
	}
	if b, done, err = c.sharing.Resolve(&c.ref); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	if len(b) != n {
		done()
		return nil, nil, fmt.Errorf("%w: a reference to %d bytes for a chunk of %d", ErrProtocol, len(b), n)
	}
	return b, done, nil
}

// receive reads the n bytes of a chunk to where r wants them.
func (c *conn) receive(r *rpc.Received, n int) error {
	for n > 0 {
		if r.Place != nil {
			if p := r.Place(min(n, pieceBytes)); len(p) > 0 {
				if err := c.readData(p); err != nil {
					return err
				}
				n -= len(p)
				r.Placed()
				continue
			}
		}
		piece := c.pieces.Get().(*[pieceBytes]byte)
		p := piece[:min(n, pieceBytes)]
		err := c.readData(p)
		if n -= len(p); err == nil && r.Place == nil {
			err = r.Chunk(p)
		}
		c.pieces.Put(piece)
		if err != nil {
			return err
		}
	}
	return nil
}

// joined is a chunk as a part of its whole message.
func (c *conn) joined(m any, head, body []byte, n int) error {
	pm, ok := m.(proto.Message)
	if !ok {
		return errNoMessage
	}
	b := append(make([]byte, 0, len(head)+n+2*entryBytes), head...)
	if n > 0 {
		b = protowire.AppendTag(b, rpc.ChunkField, protowire.BytesType)
		b = protowire.AppendVarint(b, uint64(n))
		from := len(b)
		if body != nil {
			b = append(b, body...)
		} else if b = b[:from+n]; true {
			if err := c.readData(b[from:]); err != nil {
				return err
			}
		}
	}
	return unmarshal(b, pm)
}

var errNoMessage = errors.New("frame: neither a protobuf message nor a chunk")

func unmarshal(b []byte, m any) error {
	pm, ok := m.(proto.Message)
	if !ok {
		return errNoMessage
	}
	if err := proto.Unmarshal(b, pm); err != nil {
		return fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	return nil
}
