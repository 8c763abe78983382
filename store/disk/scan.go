package disk

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/tier"
)

// Fault is one thing that is not as it was written.
type Fault struct {
	File      string // in the data directory
	Offset    int64
	What      string // the field or part
	Got, Want string
}

// Error names file, offset, part, got and want.
func (f *Fault) Error() string {
	return fmt.Sprintf("%s at %d: %s: got %s, want %s", f.File, f.Offset, f.What, f.Got, f.Want)
}

// scanner reads the records of a file without their payloads.
type scanner struct {
	file   vfs.File
	name   string
	size   int64
	number uint64
	secret uint64

	window []byte
	from   int64 // where the window lies
	filled int
}

const (
	windowBytes = 256 << 10 // read at a time where records are small
	hopBytes    = 8 << 10   // read of a record whose neighbour was far off
)

// at is n bytes at an offset, up to maxBodyBytes and a frame; they are valid until the next call.
func (s *scanner) at(offset int64, n int) ([]byte, error) {
	if offset >= s.from && offset+int64(n) <= s.from+int64(s.filled) {
		return s.window[offset-s.from:][:n], nil
	}
	want := hopBytes
	if offset-(s.from+int64(s.filled)) < hopBytes {
		want = windowBytes
	}
	want = max(want, n)
	s.window = slices.Grow(s.window[:0], want)[:want]
	s.from, s.filled = offset, 0
	if err := readFull(s.file, s.window, offset); err != nil {
		return nil, fmt.Errorf("read %s at %d: %w", s.name, offset, err)
	}
	s.filled = want
	return s.window[:n], nil
}

// record reads the record at an offset. The error is what is wrong with the bytes there; fault is one of the device.
func (s *scanner) record(f *frame, offset int64) (record []byte, err, fault error) {
	b, fault := s.at(offset, blockBytes)
	if fault != nil {
		return nil, nil, fault
	}
	n, err := frameExtent(b)
	if err != nil {
		return nil, err, nil
	}
	if n > blockBytes {
		if b, fault = s.at(offset, n); fault != nil {
			return nil, nil, fault
		}
	}
	if err := decodeFrame(f, b, s.number, uint32(offset/blockBytes), s.secret); err != nil {
		return nil, err, nil
	}
	if offset+tier.RoundUp(int64(f.bytes)) > s.size {
		return nil, errFrame, nil
	}
	return b[:n], nil, nil
}

// commits calls each for every record of a segment, with the encoded header, and gap for every run of blocks that is
// neither: a hole that was never written, the tail, what a crash tore, or damage.
func (s *scanner) commits(each func(f *frame, offset int64, body []byte) error, gap func(from, to int64, why error)) error {
	var why error
	from := int64(-1)
	for at := int64(blockBytes); at < s.size; {
		var f frame
		b, err, fault := s.record(&f, at)
		if fault != nil {
			return fault
		}
		if err == nil && f.kind != kindCommit {
			err = errFrame
		}
		if err != nil {
			if from < 0 {
				from = at
			}
			if why == nil && (err != errNoFrame || !isZero(s.window[at-s.from:][:blockBytes])) {
				why = err
			}
			at += blockBytes
			continue
		}
		if from >= 0 {
			gap(from, at, why)
			from, why = -1, nil
		}
		if err := each(&f, at, b[frameBytes:]); err != nil {
			return err
		}
		at += tier.RoundUp(int64(f.bytes))
	}
	if from >= 0 {
		gap(from, s.size, why)
	}
	return nil
}

func isZero(block []byte) bool {
	var zeros [blockBytes]byte
	return bytes.Equal(block, zeros[:])
}

// verify reads the payload of a region and compares its pieces with the sums of its header; nil if they are as they
// should be. buf is scratch of page.MaxPieceBytes.
func (s *scanner) verify(h *page.Header, offset int64, buf []byte) (*Fault, error) {
	p := h.Pieces()
	payload := offset + int64(page.PayloadOffset(h.EncodedBytes()))
	for i := range p.Count(int(h.View.H1 - h.View.H0)) {
		at, n := p.Span(i)
		b := buf[:n]
		if err := readFull(s.file, b, payload+int64(at)); err != nil {
			return nil, fmt.Errorf("read %s at %d: %w", s.name, payload+int64(at), err)
		}
		if got, want := page.PieceSum(b), h.Sum(i); got != want {
			return &Fault{s.name, payload + int64(at), fmt.Sprintf("checksum of piece %d", i), hex64(got), hex64(want)}, nil
		}
	}
	return nil, nil
}

func hex64(v uint64) string { return fmt.Sprintf("%016x", v) }

// scanJournal reads a journal file: each record from the half where it is sound.
func (s *scanner) scanJournal(each func(f *frame, body []byte) error, damage func(Fault)) error {
	half := s.size / 2 &^ (blockBytes - 1)
	second := scanner{file: s.file, name: s.name, number: s.number, secret: s.secret}
	for at := int64(blockBytes); at < half; {
		var f frame
		b, bad, fault := s.record(&f, at)
		if fault != nil {
			return fault
		}
		if bad != nil {
			var mirrored error
			if b, mirrored, fault = second.mirror(&f, at, half); fault != nil {
				return fault
			}
			if mirrored != nil {
				if bad != errNoFrame || mirrored != errNoFrame {
					damage(Fault{s.name, at, "record", bad.Error(), "a record in either half"})
				}
				at += blockBytes
				continue
			}
			damage(Fault{s.name, at, "record", bad.Error(), "what the second half has"})
		} else if _, mirrored, fault := second.mirror(&f, at, half); fault != nil {
			return fault
		} else if mirrored != nil {
			damage(Fault{s.name, half + at, "record", mirrored.Error(), "what the first half has"})
		}
		if err := each(&f, b[frameBytes:]); err != nil {
			return err
		}
		at += tier.RoundUp(int64(f.bytes))
	}
	return nil
}

// mirror reads the second copy of the record at an offset.
func (s *scanner) mirror(f *frame, offset, half int64) (record []byte, err, fault error) {
	b, fault := s.at(half+offset, blockBytes)
	if fault != nil {
		return nil, nil, fault
	}
	n, err := frameExtent(b)
	if err != nil {
		return nil, err, nil
	}
	if n > blockBytes {
		if b, fault = s.at(half+offset, n); fault != nil {
			return nil, nil, fault
		}
	}
	if err := decodeFrame(f, b, s.number, uint32(offset/blockBytes), s.secret); err != nil {
		return nil, err, nil
	}
	return b[:n], nil, nil
}
