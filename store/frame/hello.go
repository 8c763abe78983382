package frame

import (
	"encoding/binary"
	"fmt"
	"math"
)

// hello is what a client says first. Little-endian:
//
//	0         2         4             6                8
//	| version | 0       | token bytes | instance bytes | token | instance |
//
// The token is a bearer token, empty for none; the instance is shown to operators.
type hello struct {
	version         uint16
	token, instance string
}

const helloFixedBytes = 8

func (h *hello) append(b []byte) ([]byte, error) {
	if len(h.token) > math.MaxUint16 || len(h.instance) > math.MaxUint16 || len(h.token)+len(h.instance)+helloFixedBytes > helloBodyBytes {
		return b, fmt.Errorf("%w: token of %d and instance of %d bytes", ErrTooLarge, len(h.token), len(h.instance))
	}
	b = binary.LittleEndian.AppendUint16(b, h.version)
	b = binary.LittleEndian.AppendUint16(b, 0)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(h.token)))
	b = binary.LittleEndian.AppendUint16(b, uint16(len(h.instance)))
	return append(append(b, h.token...), h.instance...), nil
}

func (h *hello) decode(b []byte) error {
	if len(b) < helloFixedBytes {
		return fmt.Errorf("%w: a hello of %d bytes", ErrProtocol, len(b))
	}
	token, instance := int(binary.LittleEndian.Uint16(b[4:])), int(binary.LittleEndian.Uint16(b[6:]))
	h.version = binary.LittleEndian.Uint16(b)
	if b = b[helloFixedBytes:]; len(b) != token+instance {
		return fmt.Errorf("%w: a hello of %d bytes with token of %d and instance of %d", ErrProtocol, len(b), token, instance)
	}
	h.token, h.instance = string(b[:token]), string(b[token:])
	return nil
}

// Welcome is what a server answers: its limits and which start of which node it is. Little-endian:
//
//	0         2         4            8            12        28
//	| version | 0       | body bytes | data bytes | boot id |
type Welcome struct {
	Version   uint16
	BodyBytes uint32 // of one frame, at most
	DataBytes uint32 // of one frame, at most
	Boot      [16]byte
}

const welcomeBytes = 28

func (w *Welcome) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint16(b, w.Version)
	b = binary.LittleEndian.AppendUint16(b, 0)
	b = binary.LittleEndian.AppendUint32(b, w.BodyBytes)
	b = binary.LittleEndian.AppendUint32(b, w.DataBytes)
	return append(b, w.Boot[:]...)
}

// decode ignores what a later version may append.
func (w *Welcome) decode(b []byte) error {
	if len(b) < welcomeBytes {
		return fmt.Errorf("%w: a welcome of %d bytes", ErrProtocol, len(b))
	}
	w.Version, w.BodyBytes, w.DataBytes = binary.LittleEndian.Uint16(b), binary.LittleEndian.Uint32(b[4:]), binary.LittleEndian.Uint32(b[8:])
	w.Boot = [16]byte(b[12:28])
	if w.Version != Version {
		return fmt.Errorf("%w: the server speaks version %d", ErrProtocol, w.Version)
	}
	return nil
}
