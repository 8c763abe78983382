package rpc

import (
	"errors"
	"fmt"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// What a malformed message is answered with. Nothing of its chunk was delivered unless the error came from the
// caller's own callbacks.
var (
	ErrMalformed = errors.New("rpc: malformed message")
	ErrTruncated = fmt.Errorf("%w: truncated", ErrMalformed)
	ErrAfterBody = fmt.Errorf("%w: a field follows the chunk, which must be last", ErrMalformed)
)

// Head is what comes before a chunk: *FetchHead or *WriteHead.
type Head interface {
	// reset forgets the message before.
	reset()
	// number sets a varint field; unknown fields are ignored.
	number(field protowire.Number, v uint64)
	// bytes sets a length-delimited field; b is valid until Unmarshal returns; unknown fields are ignored.
	bytes(field protowire.Number, b []byte) error
}

// Received is given to RecvMsg in place of a FetchResponse or WritePagesRequest, and may be used for message after
// message: it allocates nothing for those that carry a chunk. Everything happens inside RecvMsg, on its goroutine:
// Head is filled, Begin is called, then Chunk with slices of gRPC's own buffers in order until chunkBytes are
// delivered. An error of a callback ends RecvMsg with it (as text of an Internal status: keep the value yourself).
type Received struct {
	Head Head
	// Begin is called once per message, also when it has no chunk (chunkBytes 0). All chunkBytes have arrived.
	Begin func(chunkBytes int) error
	// Chunk is called with p never empty; p is valid until it returns.
	Chunk func(p []byte) error
	// Place, when set, is asked by transports that read into memory of the caller's choice, in place of Chunk: where do
	// the next bytes of the chunk go, at most n of them? They are read there, and Placed is called. An empty slice
	// drops them. gRPC calls Chunk all the same: its bytes are in memory already.
	Place  func(n int) []byte
	Placed func()
	// Ref is how the chunk at hand is shared, set before Begin; nil: it came inline.
	Ref *Ref

	scratch []byte // head fields that straddle gRPC's buffers
}

// ReadHead fills Head from a message that goes without its chunk: the chunk comes beside it.
func (r *Received) ReadHead(b []byte) error {
	r.Head.reset()
	c := cursor{cur: b, left: len(b)}
	for c.left > 0 {
		field, kind, err := c.tag()
		if err != nil {
			return err
		}
		if field == ChunkField && kind == protowire.BytesType {
			return fmt.Errorf("%w: a chunk inside of a head", ErrMalformed)
		}
		if err := r.field(&c, field, kind); err != nil {
			return err
		}
	}
	return nil
}

// Read takes in a whole message that lies in b.
func (r *Received) Read(b []byte) error { return r.readFrom(cursor{cur: b, left: len(b)}) }

func (r *Received) read(data mem.BufferSlice) error {
	return r.readFrom(cursor{bufs: data, left: data.Len()})
}

func (r *Received) readFrom(c cursor) error {
	r.Head.reset()
	r.Ref = nil
	r.scratch = r.scratch[:0]
	for c.left > 0 {
		field, kind, err := c.tag()
		if err != nil {
			return err
		}
		if field == ChunkField && kind == protowire.BytesType {
			return r.body(&c)
		}
		if err := r.field(&c, field, kind); err != nil {
			return err
		}
	}
	return r.Begin(0)
}

func (r *Received) field(c *cursor, field protowire.Number, kind protowire.Type) error {
	switch kind {
	case protowire.VarintType:
		v, err := c.uvarint()
		if err != nil {
			return err
		}
		r.Head.number(field, v)
		return nil
	case protowire.BytesType:
		n, err := c.length()
		if err != nil {
			return err
		}
		var b []byte
		b, r.scratch = c.take(n, r.scratch)
		return r.Head.bytes(field, b)
	case protowire.Fixed32Type:
		return c.skip(4)
	case protowire.Fixed64Type:
		return c.skip(8)
	}
	return fmt.Errorf("%w: wire type %d of field %d", ErrMalformed, kind, field)
}

// body delivers the chunk, which ends the message.
func (r *Received) body(c *cursor) error {
	n, err := c.length()
	if err != nil {
		return err
	}
	if n < c.left {
		return ErrAfterBody
	}
	if err := r.Begin(n); err != nil {
		return err
	}
	for c.left > 0 {
		if err := r.Chunk(c.next(c.left)); err != nil {
			return err
		}
	}
	return nil
}

// cursor walks a BufferSlice without taking references: the slice outlives Unmarshal.
type cursor struct {
	bufs mem.BufferSlice // not yet begun
	cur  []byte          // unread part of the buffer begun
	left int             // unread in all
}

// next is up to n > 0 unread bytes of one buffer; left must be > 0.
func (c *cursor) next(n int) []byte {
	for len(c.cur) == 0 {
		c.cur, c.bufs = c.bufs[0].ReadOnlyData(), c.bufs[1:]
	}
	p := c.cur[:min(n, len(c.cur))]
	c.cur = c.cur[len(p):]
	c.left -= len(p)
	return p
}

// tag is the next field's.
func (c *cursor) tag() (protowire.Number, protowire.Type, error) {
	tag, err := c.uvarint()
	if err != nil {
		return 0, 0, err
	}
	field, kind := protowire.DecodeTag(tag)
	if field < protowire.MinValidNumber || field > protowire.MaxValidNumber {
		return 0, 0, fmt.Errorf("%w: field number %d", ErrMalformed, tag>>3)
	}
	return field, kind, nil
}

func (c *cursor) uvarint() (uint64, error) {
	var v uint64
	for i := 0; c.left > 0; i++ {
		b := c.next(1)[0]
		if i == 9 && b > 1 {
			return 0, fmt.Errorf("%w: varint overflows", ErrMalformed)
		}
		v |= uint64(b&0x7f) << (7 * i)
		if b < 0x80 {
			return v, nil
		}
	}
	return 0, ErrTruncated
}

// length is a length prefix, checked against what is really there.
func (c *cursor) length() (int, error) {
	n, err := c.uvarint()
	if err != nil {
		return 0, err
	}
	if n > uint64(c.left) {
		return 0, ErrTruncated
	}
	return int(n), nil
}

// take is the next n <= left bytes: in place, or at the end of scratch when they straddle buffers.
func (c *cursor) take(n int, scratch []byte) (b, _ []byte) {
	if n == 0 {
		return nil, scratch
	}
	if b = c.next(n); len(b) == n {
		return b, scratch
	}
	start := len(scratch)
	scratch = append(scratch, b...)
	for len(scratch) < start+n {
		scratch = append(scratch, c.next(start+n-len(scratch))...)
	}
	return scratch[start : start+n : start+n], scratch
}

func (c *cursor) skip(n int) error {
	if n > c.left {
		return ErrTruncated
	}
	for n > 0 {
		n -= len(c.next(n))
	}
	return nil
}
