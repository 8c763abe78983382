package page

import "encoding/binary"

// The part of canonical CBOR (RFC 8949 section 4.2.1) that vLLM's block hashes use: definite lengths, shortest heads.
const (
	cborUint  = 0 << 5
	cborNeg   = 1 << 5
	cborBytes = 2 << 5
	cborText  = 3 << 5
	cborArray = 4 << 5
	cborNull  = 0xf6

	cborMaxUint32 = 5 // longest encoding of a 32-bit number
	cborSlack     = 8 // what appendTokens may write behind its end
)

// appendHead appends the head of an item of the given major type.
func appendHead(dst []byte, major byte, v uint64) []byte {
	switch {
	case v < 24:
		return append(dst, major|byte(v))
	case v <= 0xff:
		return append(dst, major|0x18, byte(v))
	case v <= 0xffff:
		return binary.BigEndian.AppendUint16(append(dst, major|0x19), uint16(v))
	case v <= 0xffffffff:
		return binary.BigEndian.AppendUint32(append(dst, major|0x1a), uint32(v))
	}
	return binary.BigEndian.AppendUint64(append(dst, major|0x1b), v)
}

func appendInt(dst []byte, v int64) []byte {
	if v < 0 {
		return appendHead(dst, cborNeg, uint64(-1-v))
	}
	return appendHead(dst, cborUint, uint64(v))
}

func appendText(dst []byte, s string) []byte {
	return append(appendHead(dst, cborText, uint64(len(s))), s...)
}

func appendBytes(dst, b []byte) []byte {
	return append(appendHead(dst, cborBytes, uint64(len(b))), b...)
}

// appendTokens appends each token as appendHead would. dst must have room for cborMaxUint32 each, and cborSlack: most
// ids need 3 or 5 bytes in no order that a processor could predict, so both are stored as one word without a branch.
func appendTokens(dst []byte, tokens []uint32) []byte {
	at := len(dst)
	dst = dst[:at+cborMaxUint32*len(tokens)+cborSlack]
	for _, t := range tokens {
		if t <= 0xff {
			at = len(appendHead(dst[:at], cborUint, uint64(t)))
			continue
		}
		wide := uint64(0xffff-int64(t)) >> 63 // 1 above 0xffff
		word := (0x19+wide)<<56 | uint64(t)<<((40-16*wide)&63)
		binary.BigEndian.PutUint64(dst[at:], word)
		at += int(3 + 2*wide)
	}
	return dst[:at]
}
