package replay

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

func recordedLine(ms int, more string, ids ...int) string {
	return fmt.Sprintf(`{"timestamp":%d,"input_length":%d,"output_length":0,"hash_ids":%s,"page_tokens":16%s}`+"\n",
		ms, 16*len(ids), strings.ReplaceAll(fmt.Sprint(ids), " ", ","), more)
}

// TestLoadRecorded: what an engine did not ask for, since it had it, is put back where the recording tells of it.
func TestLoadRecorded(t *testing.T) {
	trace := recordedLine(0, `,"asked":3,"depth":0`, 1, 2, 3) + // a prompt
		recordedLine(10, `,"asked":2,"depth":2`, 3, 4) + // only its end, and one page more
		recordedLine(20, `,"asked":1,"parent":4`, 5) + // behind that
		recordedLine(30, `,"asked":1`, 9) // of which nothing is known
	w, err := Load("r", strings.NewReader(trace), LoadOptions{PageTokens: 16})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, a := range w.Requests {
		got = append(got, fmt.Sprint(a.Pages))
	}
	if want := "[[0 1 2] [0 1 2 3] [0 1 2 3 4] [5]]"; fmt.Sprint(got) != want || fmt.Sprint(w.Parents) != "[-1 0 1 2 3 -1]" {
		t.Errorf("pages %v with parents %v, want %s", got, w.Parents, want)
	}
	if w, err = Load("r", strings.NewReader(trace), LoadOptions{PageTokens: 32}); err != nil || len(w.Requests[2].Pages) != 2 || w.PageTokens != 32 {
		t.Errorf("with pages of two: %+v (%v)", w, err)
	}
	if _, err := Load("r", strings.NewReader(trace), LoadOptions{PageTokens: 24}); !errors.Is(err, ErrTrace) {
		t.Errorf("with pages of one and a half: %v", err)
	}
}

// TestLoadRecordedOfNoChains: names that stand behind different ones, or before themselves, are taken as they come.
func TestLoadRecordedOfNoChains(t *testing.T) {
	var d recorded
	parent := func(id uint64) *uint64 { return &id }
	for _, c := range []struct {
		blocks []uint64
		parent *uint64
		want   string
	}{
		{[]uint64{1, 2, 3}, nil, "[1 2 3]"},
		{[]uint64{3, 4}, nil, "[1 2 3 4]"},
		{[]uint64{4, 2}, nil, "[4 2]"},
		{[]uint64{3, 9}, parent(7), "[3 9]"},
		{[]uint64{1}, parent(3), "[1]"}, // a ring
		{[]uint64{3}, nil, "[3]"},
	} {
		got := d.whole(&Request{InputTokens: 16 * len(c.blocks), Blocks: c.blocks, PageTokens: 16, Parent: c.parent})
		if fmt.Sprint(got) != c.want {
			t.Errorf("%v behind %v: %v, want %s", c.blocks, c.parent, got, c.want)
		}
	}
}

// TestARecordingMayEndWithinALine: what a killed server left is read up to its last whole line; any other trace that ends so is
// refused by the line, and so is a line in the middle.
func TestARecordingMayEndWithinALine(t *testing.T) {
	line := `{"timestamp":1,"input_length":16,"output_length":0,"hash_ids":[7],"page_tokens":16,"asked":1}` + "\n"
	for text, want := range map[string]string{
		line + line + line[:40]:        "",
		line + line:                    "",
		line + line[:40] + "\n" + line: "trace line 2",
		line[:40]:                      "trace line 1",
		`{"timestamp":1,"input_length":512,"hash_ids":[7]}` + "\n" + line[:40]: "trace line 2",
	} {
		w, err := Load("test", strings.NewReader(text), LoadOptions{PageTokens: 16 * 32})
		if want == "" && (err != nil || len(w.Requests) != 2) || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}
