// Package replay runs request traces through eviction policies, and says what no policy can beat: a trace is loaded into
// a Workload, which Replay takes through a policy; UpperBound and FeasibleBelady are what the result is compared with.
// Fit makes traces that are like a real one. The Mooncake format has one JSON object a line and 512-token blocks, chained
// by prefix, so that equal block ids at equal places are equal prefixes.
package replay

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// BlockTokens is the number of tokens of one block of a Mooncake trace.
const BlockTokens = 512

// Bounds of one line: ten million tokens are 20,000 blocks.
const (
	maxLineBytes = 4 << 20
	maxBlocks    = 1 << 17
	maxTokens    = maxBlocks * BlockTokens
)

// ErrTrace is the kind of every error about the text of a trace.
var ErrTrace = errors.New("trace")

// LineError says which line of a trace is wrong, and how.
type LineError struct {
	Line int // from 1
	Text string
}

func (e *LineError) Error() string { return fmt.Sprintf("trace line %d: %s", e.Line, e.Text) }

// Unwrap makes errors.Is(err, ErrTrace) work.
func (e *LineError) Unwrap() error { return ErrTrace }

// Request is one request of a trace.
type Request struct {
	TimestampMS  int64    `json:"timestamp"`     // since the start of the trace
	InputTokens  int      `json:"input_length"`  // of the prompt
	OutputTokens int      `json:"output_length"` // generated
	Blocks       []uint64 `json:"hash_ids"`      // of the prompt; the last may be partial

	// Of a recording (docs/formats/trace.md) alone:
	PageTokens int     `json:"page_tokens"` // of each block; 0: BlockTokens
	Asked      int     `json:"asked"`       // the first of Blocks: looked up. The others were published only
	Depth      *int    `json:"depth"`       // pages before Blocks; nil: nobody said
	Parent     *uint64 `json:"parent"`      // the page before Blocks; nil: there is none, or nobody said
	Tenant     int     `json:"tenant"`
	Namespace  int     `json:"namespace"`
	Group      int     `json:"group"`
}

// FullBlocks are the blocks that the prompt fills: only those have pages.
func (r *Request) FullBlocks() []uint64 {
	return r.Blocks[:min(len(r.Blocks), r.InputTokens/r.blockTokens())]
}

// Reader reads a trace request by request. Memory is bounded by one line.
type Reader struct {
	lines
	recording bool // the requests so far are of one
}

// NewReader reads from r.
func NewReader(r io.Reader) *Reader { return &Reader{lines: linesOf(r)} }

// Next is the next request, or io.EOF. Empty lines are skipped; anything else that is not a request is a *LineError.
func (r *Reader) Next() (Request, error) {
	var q Request
	if err := r.decode(&q); err != nil {
		var bad *LineError
		if r.recording && *r.cut && errors.As(err, &bad) { // a server that was killed wrote no more of it
			return Request{}, io.EOF
		}
		return Request{}, err
	}
	if text := q.wrong(); text != "" {
		return Request{}, &LineError{r.line, text}
	}
	r.recording = q.FromRecording()
	return q, nil
}

// lines are those of a trace, one JSON object each.
type lines struct {
	scan *bufio.Scanner
	line int   // the one at hand, from 1
	cut  *bool // nothing ends it
}

func linesOf(r io.Reader) lines {
	l := lines{scan: bufio.NewScanner(r), cut: new(bool)}
	l.scan.Buffer(make([]byte, 64<<10), maxLineBytes)
	l.scan.Split(func(data []byte, atEnd bool) (advance int, token []byte, err error) {
		*l.cut = atEnd && bytes.IndexByte(data, '\n') < 0
		return bufio.ScanLines(data, atEnd)
	})
	return l
}

// decode reads the next line that is not empty into v, or answers io.EOF. A line that was cut off by a failing reader is
// that reader's error.
func (l *lines) decode(v any) error {
	for l.scan.Scan() {
		l.line++
		if len(l.scan.Bytes()) == 0 {
			continue
		}
		err := json.Unmarshal(l.scan.Bytes(), v)
		if err == nil {
			return nil
		}
		if cut := l.scan.Err(); cut != nil {
			return fmt.Errorf("read trace line %d: %w", l.line, cut)
		}
		return &LineError{l.line, wrongJSON(err)}
	}
	if err := l.scan.Err(); errors.Is(err, bufio.ErrTooLong) {
		return &LineError{l.line + 1, fmt.Sprintf("longer than %d bytes", maxLineBytes)}
	} else if err != nil {
		return fmt.Errorf("read trace line %d: %w", l.line+1, err)
	}
	return io.EOF
}

// wrongJSON says what is wrong with a line in the words of the format.
func wrongJSON(err error) string {
	var kind *json.UnmarshalTypeError
	if errors.As(err, &kind) && kind.Field != "" {
		return fmt.Sprintf("%s is a JSON %s, which it cannot be", kind.Field, kind.Value)
	}
	return "no JSON object: " + err.Error()
}

func (r *Request) wrong() string {
	switch {
	case r.TimestampMS < 0:
		return fmt.Sprintf("timestamp %d is negative", r.TimestampMS)
	case r.PageTokens < 0 || r.PageTokens > maxTokens:
		return fmt.Sprintf("page_tokens %d is not between 0 and %d", r.PageTokens, maxTokens)
	case r.InputTokens < 0 || r.InputTokens > maxTokens:
		return fmt.Sprintf("input_length %d is not between 0 and %d", r.InputTokens, maxTokens)
	case r.OutputTokens < 0 || r.OutputTokens > maxTokens:
		return fmt.Sprintf("output_length %d is not between 0 and %d", r.OutputTokens, maxTokens)
	case len(r.Blocks) > maxBlocks:
		return fmt.Sprintf("%d hash_ids, at most %d", len(r.Blocks), maxBlocks)
	case len(r.Blocks) < r.InputTokens/r.blockTokens():
		return fmt.Sprintf("%d hash_ids for %d tokens, want at least %d", len(r.Blocks), r.InputTokens, r.InputTokens/r.blockTokens())
	}
	return ""
}
