package rpc

import (
	"encoding/binary"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
)

const (
	// ChunkField is the field number of the payload in FetchResponse and WritePagesRequest: the last field.
	ChunkField = 15

	chunkTag      = ChunkField<<3 | 2
	maxChunkTag   = 1 + binary.MaxVarintLen64 // tag and length in front of a body
	lentHeadBytes = 2 << 10                   // > what mem.NewBuffer declines to count (1 KiB)
	minLent       = 1<<10 + 1                 // shorter bodies are copied: mem.NewBuffer would never give them back
)

// Chunk is sent by SendMsg in place of a FetchResponse or WritePagesRequest. Head is the encoded message without its
// chunk field and may be reused as soon as SendMsg returns. Body is lent: it must not change until Pin releases.
// An empty Body leaves the field out, as the generated code does.
type Chunk struct {
	Head []byte
	Body []byte
	Pin  *Pin // nil: Body is copied
	Ref  *Ref // not nil: how the receiver knows Body already (Sharing.Refer); sent in its place where that is possible
}

// Codec is gRPC's proto codec plus Chunk and Received. It is passed by grpc.ForceServerCodecV2 and grpc.ForceCodecV2,
// never registered. Safe for concurrent use.
type Codec struct {
	stock encoding.CodecV2
	lents sync.Pool // of *lent: no allocation per chunk
}

// NewCodec returns a codec; one per server or client is enough.
func NewCodec() *Codec { return &Codec{stock: encoding.GetCodecV2(proto.Name)} }

// Name is "proto": the content type on the wire is the stock one.
func (c *Codec) Name() string { return proto.Name }

// Marshal lends the body of a Chunk and leaves every other message to gRPC's codec.
func (c *Codec) Marshal(v any) (mem.BufferSlice, error) {
	m, ok := v.(*Chunk)
	if !ok {
		return c.stock.Marshal(v)
	}
	if len(m.Body) < minLent || m.Pin == nil {
		return mem.BufferSlice{mem.SliceBuffer(joined(m))}, nil
	}
	l, _ := c.lents.Get().(*lent)
	if l == nil {
		l = new(lent)
	}
	return l.fill(c, m), nil
}

// Unmarshal delivers to a *Received and leaves every other message to gRPC's codec.
func (c *Codec) Unmarshal(data mem.BufferSlice, v any) error {
	if r, ok := v.(*Received); ok {
		return r.read(data)
	}
	return c.stock.Unmarshal(data, v)
}

// joined is a message that is not lent: head and body in one fresh slice.
func joined(m *Chunk) []byte {
	b := make([]byte, 0, len(m.Head)+maxChunkTag+len(m.Body))
	b = append(b, m.Head...)
	if len(m.Body) > 0 {
		b = append(appendChunkTag(b, len(m.Body)), m.Body...)
	}
	return b
}

func appendChunkTag(b []byte, n int) []byte {
	return binary.AppendUvarint(append(b, chunkTag), uint64(n))
}

// lent is one message that gRPC holds: a copy of its head, the lent body, and the slice that names both. It is a
// mem.BufferPool so that the last Free of each of its two buffers comes back here. gRPC frees an element of the
// slice only after its last look at it, so the slice may live in here too.
type lent struct {
	codec *Codec
	pin   *Pin
	left  atomic.Int32 // buffers that gRPC still holds
	bufs  [2]mem.Buffer
	head  []byte // of room, or fresh when the head is long
	body  []byte
	room  [lentHeadBytes]byte
}

func (l *lent) fill(c *Codec, m *Chunk) mem.BufferSlice {
	l.codec, l.pin, l.body, l.head = c, m.Pin, m.Body, l.room[:0]
	if len(m.Head)+maxChunkTag > len(l.room) {
		l.head = make([]byte, 0, len(m.Head)+maxChunkTag)
	}
	l.head = appendChunkTag(append(l.head, m.Head...), len(m.Body))
	m.Pin.Lend()
	l.left.Store(2)
	l.bufs = [2]mem.Buffer{mem.NewBuffer(&l.head, l), mem.NewBuffer(&l.body, l)}
	return l.bufs[:]
}

// Get is never called: a lent message allocates nothing.
func (l *lent) Get(int) *[]byte { panic("rpc: a lent message is no allocator") }

// Put is one buffer coming back.
func (l *lent) Put(*[]byte) {
	if l.left.Add(-1) > 0 {
		return
	}
	pin, c := l.pin, l.codec
	l.pin, l.head, l.body = nil, nil, nil
	l.bufs = [2]mem.Buffer{}
	c.lents.Put(l)
	pin.Back()
}
