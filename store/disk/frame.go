package disk

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/zeebo/xxh3"

	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/tier"
)

// Every record begins on a block and with a frame, little-endian; docs/formats/segments.md is this drawing with its
// reasons. Behind the frame lies the body: the encoded header of an extent, or the entries of a journal record.
//
//	 0 8 checksum: xxh3-64, seeded with the directory's secret, of bytes [8, 64+body)
//	 8 4 magic "QREC"   12 1 version   13 1 kind   14 2 zero
//	16 8 number of the file            24 8 sequence number
//	32 8 synced: all records below this sequence number were durable when this one was written
//	40 4 block in the file             44 4 body bytes
//	48 8 bytes of the record as asked for, frame included
//	56 4 expiry (unix s)               60 4 lineage id, 0: none
const (
	blockBytes   = tier.Align
	frameBytes   = page.HeadBytes
	frameMagic   = "QREC"
	frameVersion = 1

	// maxBodyBytes bounds what is read for a body: an extent header is the longest there is.
	maxBodyBytes = page.MaxHeaderBytes
)

// kind of a record.
type kind uint8

const (
	kindCommit kind = 1 // a region: frame, extent header, zeros, payload
	kindBury   kind = 2 // places of regions that ended
	kindRetire kind = 3 // epochs whose regions ended
	kindDefine kind = 4 // lineages by id
)

type frame struct {
	kind        kind
	number      uint64
	seq, synced uint64
	block       uint32
	bodyBytes   uint32
	bytes       uint64
	expiry      clock.Wall
	lineage     uint32
}

// Why bytes are no record.
var (
	errNoFrame   = errors.New("no frame")               // not even the magic
	errFrame     = errors.New("frame out of bounds")    // lengths that no record has
	errChecksum  = errors.New("frame checksum")         // damage, or other bytes that look like a frame
	errMisplaced = errors.New("frame of another place") // sound, and not where it belongs
)

// seal writes the frame into the first bytes of record, whose body is in place, and takes the checksum.
func (f *frame) seal(record []byte, secret uint64) {
	le := binary.LittleEndian
	b := record[:frameBytes+int(f.bodyBytes)]
	copy(b[8:], frameMagic)
	b[12], b[13], b[14], b[15] = frameVersion, byte(f.kind), 0, 0
	le.PutUint64(b[16:], f.number)
	le.PutUint64(b[24:], f.seq)
	le.PutUint64(b[32:], f.synced)
	le.PutUint32(b[40:], f.block)
	le.PutUint32(b[44:], f.bodyBytes)
	le.PutUint64(b[48:], f.bytes)
	le.PutUint32(b[56:], uint32(f.expiry))
	le.PutUint32(b[60:], f.lineage)
	le.PutUint64(b, xxh3.HashSeed(b[8:], secret))
}

// frameExtent is how many bytes decodeFrame needs: the frame and its body. b holds at least a frame.
func frameExtent(b []byte) (int, error) {
	if string(b[8:12]) != frameMagic {
		return 0, errNoFrame
	}
	n := binary.LittleEndian.Uint32(b[44:])
	if n > maxBodyBytes {
		return 0, errFrame
	}
	return frameBytes + int(n), nil
}

// decodeFrame reads the frame of a record at a place. b holds at least what frameExtent says.
func decodeFrame(f *frame, b []byte, number uint64, block uint32, secret uint64) error {
	n, err := frameExtent(b)
	if err != nil {
		return err
	}
	if len(b) < n {
		return errFrame
	}
	le := binary.LittleEndian
	if le.Uint64(b) != xxh3.HashSeed(b[8:n], secret) {
		return errChecksum
	}
	*f = frame{
		kind: kind(b[13]), number: le.Uint64(b[16:]), seq: le.Uint64(b[24:]), synced: le.Uint64(b[32:]),
		block: le.Uint32(b[40:]), bodyBytes: le.Uint32(b[44:]), bytes: le.Uint64(b[48:]),
		expiry: clock.Wall(le.Uint32(b[56:])), lineage: le.Uint32(b[60:]),
	}
	if b[12] != frameVersion || b[14] != 0 || b[15] != 0 || f.kind < kindCommit || f.kind > kindDefine || f.bytes < uint64(n) || f.bytes > maxRegionBytes {
		return errFrame
	}
	if f.number != number || f.block != block {
		return fmt.Errorf("%w: file %016x block %d", errMisplaced, f.number, f.block)
	}
	return nil
}

// Each file begins with a block of its own that says what it is and repeats the directory's identity.
//
//	 0 8 magic "QUIREDSK"   8 4 version   12 4 kind of file
//	16 16 directory id     32 8 secret
//	40 8 number            48 8 bytes of the file
//	56 . zeros           4088 8 xxh3-64 of all before it
const (
	labelMagic   = "QUIREDSK"
	labelVersion = 1
	labelSumAt   = blockBytes - 8
)

// fileKind says what a file holds.
type fileKind uint32

const (
	fileIdentity fileKind = 1
	fileSegment  fileKind = 2
	fileJournal  fileKind = 3
)

// identity is what all files of one directory have in common.
type identity struct {
	id     [16]byte
	secret uint64 // seeds the checksums of frames: no payload can pass for a frame
}

// label is the first block of a file.
type label struct {
	kind fileKind
	identity
	number uint64
	bytes  int64
}

func (l *label) encode(b []byte) {
	le := binary.LittleEndian
	clear(b[:blockBytes])
	copy(b, labelMagic)
	le.PutUint32(b[8:], labelVersion)
	le.PutUint32(b[12:], uint32(l.kind))
	copy(b[16:], l.id[:])
	le.PutUint64(b[32:], l.secret)
	le.PutUint64(b[40:], l.number)
	le.PutUint64(b[48:], uint64(l.bytes))
	le.PutUint64(b[labelSumAt:], xxh3.Hash(b[:labelSumAt]))
}

func decodeLabel(b []byte) (l label, err error) {
	le := binary.LittleEndian
	switch {
	case len(b) < blockBytes || string(b[:8]) != labelMagic:
		return l, errors.New("no label")
	case le.Uint64(b[labelSumAt:]) != xxh3.Hash(b[:labelSumAt]):
		return l, errors.New("label checksum")
	case le.Uint32(b[8:]) != labelVersion:
		return l, fmt.Errorf("label version %d, this program knows %d", le.Uint32(b[8:]), labelVersion)
	}
	l = label{kind: fileKind(le.Uint32(b[12:])), number: le.Uint64(b[40:]), bytes: int64(le.Uint64(b[48:]))}
	l.id, l.secret = [16]byte(b[16:32]), le.Uint64(b[32:])
	return l, nil
}
