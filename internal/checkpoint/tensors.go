package checkpoint

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

const (
	maxHeaderBytes = 100 << 20 // what the safetensors format allows
	lengthBytes    = 8         // before the header, little-endian
	plainHeader    = 4096      // of formats that are not looked into
)

// errTruncated is in the chain of every error of a file that ends before its header says.
var errTruncated = errors.New("download it again")

// span is a tensor's bytes [begin, end) in its file.
type span struct {
	name       string
	begin, end int64
}

// layout is what a file says of itself: how long its header is and where its tensors lie.
type layout struct {
	headerBytes int64
	spans       []span // ascending by begin
	params      uint64
}

// layoutOf reads the header of a file with weights.
//
//	0  8 n, little-endian
//	8  n JSON: {"name": {"dtype": ..., "shape": [...], "data_offsets": [begin, end]}, ..., "__metadata__": {...}}
//	8+n  the tensors' bytes, without holes
func layoutOf(r io.ReaderAt, name string, size int64) (*layout, error) {
	if !strings.HasSuffix(strings.ToLower(name), ".safetensors") {
		return &layout{headerBytes: min(size, plainHeader), spans: []span{{"", 0, size}}}, nil
	}
	var length [lengthBytes]byte
	if size < lengthBytes {
		return nil, fmt.Errorf("it has %d bytes, less than the length of a header: %w", size, errTruncated)
	}
	if _, err := r.ReadAt(length[:], 0); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint64(length[:])
	switch {
	case n > maxHeaderBytes:
		return nil, fmt.Errorf("its header says that it has %d bytes, at most %d are allowed: it is no safetensors file", n, maxHeaderBytes)
	case int64(n) > size-lengthBytes:
		return nil, fmt.Errorf("its header of %d bytes is cut short after %d: %w", n, size-lengthBytes, errTruncated)
	}
	header := make([]byte, n)
	if _, err := r.ReadAt(header, lengthBytes); err != nil {
		return nil, err
	}
	return parseHeader(header, size)
}

func parseHeader(header []byte, size int64) (*layout, error) {
	var entries map[string]json.RawMessage
	if err := json.Unmarshal(header, &entries); err != nil {
		return nil, fmt.Errorf("its header is not JSON: %w", err)
	}
	l := &layout{headerBytes: lengthBytes + int64(len(header))}
	room := size - l.headerBytes
	for name, raw := range entries {
		if name == "__metadata__" {
			continue
		}
		var t struct {
			Shape   []uint64 `json:"shape"`
			Offsets []int64  `json:"data_offsets"`
		}
		if err := json.Unmarshal(raw, &t); err != nil || len(t.Offsets) != 2 || t.Offsets[0] < 0 || t.Offsets[1] < t.Offsets[0] {
			return nil, fmt.Errorf("its header has no place for tensor %.80q", name)
		}
		if t.Offsets[1] > room {
			return nil, fmt.Errorf("tensor %.80q ends %d bytes after the header, where the file has %d: %w", name, t.Offsets[1], room, errTruncated)
		}
		l.spans = append(l.spans, span{name, l.headerBytes + t.Offsets[0], l.headerBytes + t.Offsets[1]})
		l.params += elements(t.Shape)
	}
	slices.SortFunc(l.spans, func(a, b span) int {
		if a.begin != b.begin {
			return int(min(max(a.begin-b.begin, -1), 1))
		}
		return strings.Compare(a.name, b.name)
	})
	end := l.headerBytes
	for _, s := range l.spans {
		end = max(end, s.end)
	}
	if end != size {
		return nil, fmt.Errorf("its tensors end at byte %d, the file has %d: it is no whole safetensors file", end, size)
	}
	return l, nil
}

// elements is the product of a shape, 0 for one that is absurd.
func elements(shape []uint64) uint64 {
	n := uint64(1)
	for _, d := range shape {
		if d > 0 && n > 1<<48/d {
			return 0
		}
		n *= d
	}
	return n
}
