// Package replay reads request traces. It knows the format of the Mooncake traces: one JSON object a line, 512-token
// blocks, chained by prefix, so that equal block ids at equal places are equal prefixes.
package replay

import (
	"bufio"
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
}

// FullBlocks are the blocks that the prompt fills: only those have pages.
func (r *Request) FullBlocks() []uint64 {
	return r.Blocks[:min(len(r.Blocks), r.InputTokens/BlockTokens)]
}

// Reader reads a trace request by request. Memory is bounded by one line.
type Reader struct {
	lines *bufio.Scanner
	line  int
}

// NewReader reads from r.
func NewReader(r io.Reader) *Reader {
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 64<<10), maxLineBytes)
	return &Reader{lines: s}
}

// Next is the next request, or io.EOF. Empty lines are skipped; anything else that is not a request is a *LineError.
func (r *Reader) Next() (Request, error) {
	for r.lines.Scan() {
		r.line++
		if len(r.lines.Bytes()) == 0 {
			continue
		}
		var q Request
		if err := json.Unmarshal(r.lines.Bytes(), &q); err != nil {
			return Request{}, &LineError{r.line, err.Error()}
		}
		if text := q.wrong(); text != "" {
			return Request{}, &LineError{r.line, text}
		}
		return q, nil
	}
	if err := r.lines.Err(); errors.Is(err, bufio.ErrTooLong) {
		return Request{}, &LineError{r.line + 1, fmt.Sprintf("longer than %d bytes", maxLineBytes)}
	} else if err != nil {
		return Request{}, fmt.Errorf("read trace: %w", err)
	}
	return Request{}, io.EOF
}

func (r *Request) wrong() string {
	switch {
	case r.TimestampMS < 0:
		return fmt.Sprintf("timestamp %d is negative", r.TimestampMS)
	case r.InputTokens < 0 || r.InputTokens > maxTokens:
		return fmt.Sprintf("input_length %d is not between 0 and %d", r.InputTokens, maxTokens)
	case r.OutputTokens < 0 || r.OutputTokens > maxTokens:
		return fmt.Sprintf("output_length %d is not between 0 and %d", r.OutputTokens, maxTokens)
	case len(r.Blocks) > maxBlocks:
		return fmt.Sprintf("%d hash_ids, at most %d", len(r.Blocks), maxBlocks)
	case len(r.Blocks) < r.InputTokens/BlockTokens:
		return fmt.Sprintf("%d hash_ids for %d tokens, want at least %d", len(r.Blocks), r.InputTokens, r.InputTokens/BlockTokens)
	}
	return ""
}
