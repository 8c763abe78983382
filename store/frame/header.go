package frame

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Version is the version of the frames that this package speaks.
const Version = 1

const (
	magic       = 0x31465251 // "QRF1", little-endian
	headerBytes = 24
)

// kind is what a frame is.
type kind uint8

const (
	kindHello    kind = 1 + iota // client, once, first
	kindWelcome                  // server's answer to it
	kindRequest                  // client: a call begins
	kindMessage                  // one message of a stream, or a batch of chunks
	kindEnd                      // client: no more messages
	kindResponse                 // server: the one answer; the call is over
	kindStatus                   // server: the call is over; body is a google.rpc.Status
	kindRelease                  // the peer no longer reads memory that it was referred to
	kindEndOfKinds
)

// Flags of a frame.
const (
	flagMore   = 1 << 0 // request: messages follow, up to an end
	flagChunks = 1 << 1 // message: body is a batch of chunks
)

// What a peer is told, or told about, when it does not keep to the protocol. The connection ends.
var (
	ErrProtocol = errors.New("frame: protocol error")
	ErrTooLarge = fmt.Errorf("%w: larger than allowed", ErrProtocol)
)

// header is what every frame begins with. Little-endian:
//
//	0       4      5       6        8      12           16           20      24
//	| magic | kind | flags | method | call | body bytes | data bytes | extra |
//
// call is the client's number of the call, from 1 on. extra is the time left in ms of a request (0: no deadline), and
// of a release how many references of the call have been released by now.
type header struct {
	kind   kind
	flags  uint8
	method uint16
	call   uint32
	body   uint32
	data   uint32
	extra  uint32
}

func (h *header) put(b []byte) {
	_ = b[headerBytes-1]
	binary.LittleEndian.PutUint32(b, magic)
	b[4], b[5] = byte(h.kind), h.flags
	binary.LittleEndian.PutUint16(b[6:], h.method)
	binary.LittleEndian.PutUint32(b[8:], h.call)
	binary.LittleEndian.PutUint32(b[12:], h.body)
	binary.LittleEndian.PutUint32(b[16:], h.data)
	binary.LittleEndian.PutUint32(b[20:], h.extra)
}

// decode reads a header and checks its lengths against what this end takes.
func (h *header) decode(b *[headerBytes]byte, l *limits) error {
	if m := binary.LittleEndian.Uint32(b[:]); m != magic {
		return fmt.Errorf("%w: a frame begins with %08x", ErrProtocol, m)
	}
	*h = header{
		kind: kind(b[4]), flags: b[5], method: binary.LittleEndian.Uint16(b[6:]), call: binary.LittleEndian.Uint32(b[8:]),
		body: binary.LittleEndian.Uint32(b[12:]), data: binary.LittleEndian.Uint32(b[16:]), extra: binary.LittleEndian.Uint32(b[20:]),
	}
	switch {
	case h.kind == 0 || h.kind >= kindEndOfKinds:
		return fmt.Errorf("%w: kind %d", ErrProtocol, h.kind)
	case int64(h.body) > int64(l.body):
		return fmt.Errorf("%w: a body of %d bytes, at most %d", ErrTooLarge, h.body, l.body)
	case h.data > 0 && (h.kind != kindMessage || h.flags&flagChunks == 0):
		return fmt.Errorf("%w: data behind a frame of kind %d", ErrProtocol, h.kind)
	case int64(h.data) > int64(l.data):
		return fmt.Errorf("%w: %d bytes of data, at most %d", ErrTooLarge, h.data, l.data)
	}
	return nil
}

// limits is what one end takes in one frame.
type limits struct{ body, data int }

// Bounds of frames.
const (
	helloBodyBytes  = 16 << 10 // of a hello, a welcome and a status before one: all that a stranger can send
	maxDataBytes    = 8 << 20  // of the data of one frame: a full window and one more chunk
	windowBytes     = 1 << 20  // of data that is gathered before it is written
	windowHeadBytes = 32 << 10 // of what describes it
)
