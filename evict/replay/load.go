package replay

import (
	"bufio"
	"bytes"
	"compress/flate"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// LoadOptions say how a trace becomes a workload. The zero value is documented defaults.
type LoadOptions struct {
	PageTokens  uint32  // 0: DefaultPageTokens; whole blocks of the trace
	MeanArrival float64 // seconds between starts of conversations, where a trace does not tell; 0: DefaultMeanArrival
	Seed        uint64  // of these starts
}

// Defaults of LoadOptions.
const (
	DefaultPageTokens  = 512
	DefaultMeanArrival = 60.0
)

// maxTraceBytes bounds the text of one trace, unpacked.
const maxTraceBytes = 4 << 30

// LoadFile loads the trace at path; its name is the file's without what comes behind the first dot.
func LoadFile(path string, o LoadOptions) (*Workload, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	name, _, _ := strings.Cut(filepath.Base(path), ".")
	w, err := Load(name, f, o)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return w, nil
}

// Load reads a whole trace: of the Mooncake format, or conversations of agents (Conversation says which), plain or
// packed by gzip. What is wrong with it is an ErrTrace; a line that is wrong is a *LineError. A page is a run of the
// trace's blocks; those that a prompt does not fill have none.
func Load(name string, r io.Reader, o LoadOptions) (*Workload, error) {
	if o.PageTokens == 0 {
		o.PageTokens = DefaultPageTokens
	}
	if o.MeanArrival <= 0 {
		o.MeanArrival = DefaultMeanArrival
	}
	in, err := unpack(r)
	if err != nil {
		return nil, err
	}
	if speaksOfConversations(in) {
		return loadConversations(name, in, o)
	}
	return loadMooncake(name, in, o)
}

// unpack sees through gzip, and bounds what comes out.
func unpack(r io.Reader) (*bufio.Reader, error) {
	in := bufio.NewReaderSize(r, 64<<10)
	if magic, _ := in.Peek(2); !bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		return bufio.NewReaderSize(&bounded{r: in, left: maxTraceBytes}, 64<<10), nil
	}
	z, err := gzip.NewReader(in)
	if err != nil {
		return nil, fmt.Errorf("%w: gzip: %w", ErrTrace, err)
	}
	return bufio.NewReaderSize(&bounded{r: z, left: maxTraceBytes}, 64<<10), nil
}

// bounded gives an error behind so many bytes, and says of errors of gzip that they are of the trace.
type bounded struct {
	r    io.Reader
	left int64
}

func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, fmt.Errorf("%w: longer than %d bytes", ErrTrace, int64(maxTraceBytes))
	}
	var corrupt flate.CorruptInputError
	if errors.Is(err, gzip.ErrChecksum) || errors.Is(err, gzip.ErrHeader) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &corrupt) {
		err = fmt.Errorf("%w: gzip: %w", ErrTrace, err)
	}
	return n, err
}

// speaksOfConversations tells the formats apart by the first keys of the first line.
func speaksOfConversations(in *bufio.Reader) bool {
	head, _ := in.Peek(4 << 10)
	d := json.NewDecoder(bytes.NewReader(head))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return false
	}
	for depth := 0; ; {
		t, err := d.Token()
		if err != nil {
			return false
		}
		switch v := t.(type) {
		case json.Delim:
			if depth += 1; v == ']' || v == '}' {
				depth -= 2
			}
		case string:
			if depth == 0 && (v == "block_size" || v == "requests") {
				return true
			}
		}
		if depth < 0 {
			return false
		}
	}
}

func loadMooncake(name string, r io.Reader, o LoadOptions) (*Workload, error) {
	b, err := newBuilder(name, o.PageTokens, o.PageTokens) // each request says what its blocks are
	if err != nil {
		return nil, err
	}
	var recording recorded
	for in := NewReader(r); ; {
		q, err := in.Next()
		if errors.Is(err, io.EOF) {
			return b.w, nil
		} else if err != nil {
			return nil, err
		}
		a := Access{Seconds: float64(q.TimestampMS) / 1000, Input: int32(q.InputTokens), Output: int32(q.OutputTokens)}
		if q.FromRecording() {
			a.Space = b.space(q.Namespace)
		}
		err = b.blocksOf(uint32(q.blockTokens()))
		if err == nil {
			err = b.add(a, recording.whole(&q))
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", in.line, err)
		}
	}
}
