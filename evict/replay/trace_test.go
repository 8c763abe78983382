package replay

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
)

func readAll(r io.Reader) (all []Request, err error) {
	tr := NewReader(r)
	for {
		q, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return all, err
		}
		all = append(all, q)
	}
}

func TestConversationSlice(t *testing.T) {
	all, err := readAll(ConversationSlice())
	if err != nil {
		t.Fatal(err)
	}
	pages, seen := 0, map[uint64]bool{}
	for _, q := range all {
		for _, b := range q.FullBlocks() {
			pages++
			seen[b] = true
		}
	}
	if len(all) != 800 || pages != 21223 || len(seen) != 17019 {
		t.Errorf("%d requests, %d pages, %d of them distinct; want 800, 21223, 17019", len(all), pages, len(seen))
	}
}

func TestLineErrors(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"{\"input_length\":1}\n\n{", "line 3"},
		{`{"input_length":-1}`, "input_length -1"},
		{`{"input_length":1024,"hash_ids":[1]}`, "1 hash_ids for 1024 tokens"},
		{`{"output_length":99999999999}`, "output_length"},
		{`{"timestamp":-5}`, "timestamp -5"},
		{`{"hash_ids":["x"]}`, "line 1"},
		{strings.Repeat(" ", maxLineBytes+1), "longer than"},
	} {
		_, err := readAll(strings.NewReader(c.in))
		if !errors.Is(err, ErrTrace) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.40q: %v, want %q", c.in, err, c.want)
		}
	}
}

func FuzzTraceReader(f *testing.F) {
	f.Add([]byte(`{"timestamp":0,"input_length":6758,"output_length":500,"hash_ids":[0,1,2,3,4,5,6,7,8,9,10,11,12,13]}`))
	f.Add([]byte("\n{}\n[1]\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		all, err := readAll(bytes.NewReader(b))
		if err != nil && !errors.Is(err, ErrTrace) {
			t.Fatal(err)
		}
		for _, q := range all {
			if len(q.FullBlocks())*BlockTokens > q.InputTokens {
				t.Fatal("more full blocks than tokens")
			}
		}
	})
}
