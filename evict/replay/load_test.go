package replay

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

//go:embed testdata/agentic_coding_14.jsonl
var conversations []byte

func packed(t testing.TB, text []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write(text); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestLoadCountsPages: the counts were taken from the same files by another program.
func TestLoadCountsPages(t *testing.T) {
	for _, c := range []struct {
		text                      []byte
		pageTokens                uint32
		requests, accesses, pages int
	}{
		{conversationSlice, 0, 800, 21223, 17019},
		{conversationSlice, 1024, 800, 10405, 8661},
		{conversations, 64, 242, 764102, 65525},
		{conversations, 0, 242, 95407, 8188},
		{packed(t, conversations), 512, 242, 95407, 8188},
	} {
		w, err := Load("x", bytes.NewReader(c.text), LoadOptions{PageTokens: c.pageTokens})
		if err != nil {
			t.Fatal(err)
		}
		if len(w.Requests) != c.requests || w.Accesses() != c.accesses || w.Pages() != c.pages {
			t.Errorf("pages of %d: %d requests, %d accesses, %d pages; want %d, %d, %d",
				c.pageTokens, len(w.Requests), w.Accesses(), w.Pages(), c.requests, c.accesses, c.pages)
		}
		checkTree(t, w)
	}
}

// checkTree: each request is a path from a root, parents come first, times do not go back.
func checkTree(t *testing.T, w *Workload) {
	t.Helper()
	last := 0.
	for i := range w.Requests {
		a := &w.Requests[i]
		parent := int32(-1)
		for d, p := range a.Pages {
			if w.Parents[p] != parent || w.Depths[p] != int32(d) || p <= parent {
				t.Fatalf("request %d, page %d: parent %d, depth %d", i, p, w.Parents[p], w.Depths[p])
			}
			parent = p
		}
		if a.Seconds < last || len(a.Pages) > int(a.Input)/int(w.PageTokens) {
			t.Fatalf("request %d at %v after %v, %d pages of %d tokens", i, a.Seconds, last, len(a.Pages), a.Input)
		}
		last = a.Seconds
	}
}

// TestConversationsArrive by a seeded Poisson process; each keeps its own time.
func TestConversationsArrive(t *testing.T) {
	var text strings.Builder
	const n = 2000
	for range n {
		text.WriteString(`{"block_size":64,"hash_id_scope":"local","requests":[{"t":5,"model":"m","in":64,"out":1,"runs":[[1,1]]},{"t":5,"model":"m","in":128,"out":1,"runs":[[1,2]]}]}` + "\n")
	}
	load := func(seed uint64, mean float64) *Workload {
		w, err := Load("x", strings.NewReader(text.String()), LoadOptions{PageTokens: 64, Seed: seed, MeanArrival: mean})
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	a, b, other := load(1, 10), load(1, 10), load(2, 10)
	same, sum, short := true, 0., 0
	for i := 0; i < 2*n; i += 2 {
		x := a.Requests[i].Seconds
		if x != b.Requests[i].Seconds || a.Requests[i+1].Seconds != x {
			t.Fatalf("request %d at %v, then %v and %v", i, x, b.Requests[i].Seconds, a.Requests[i+1].Seconds)
		}
		same = same && x == other.Requests[i].Seconds
		if i > 0 {
			gap := x - a.Requests[i-2].Seconds
			if sum += gap; gap < 10*math.Ln2 {
				short++
			}
		}
	}
	if same || a.Requests[0].Seconds != 5 {
		t.Errorf("the first came at %v; another seed gives the same times: %v", a.Requests[0].Seconds, same)
	}
	// 1,999 exponential times of mean 10: mean within 5 standard errors, half of them below 10 ln 2.
	if mean := sum / (n - 1); math.Abs(mean-10) > 5*10/math.Sqrt(n) || math.Abs(float64(short)/(n-1)-0.5) > 5*0.5/math.Sqrt(n) {
		t.Errorf("mean gap %v, %d of %d below the median", mean, short, n-1)
	}
	if w := load(1, 0); math.Abs(w.Requests[2].Seconds-5-6*(a.Requests[2].Seconds-5)) > 1e-9 {
		t.Errorf("default mean: the second came at %v, with a mean of 10 at %v", w.Requests[2].Seconds, a.Requests[2].Seconds)
	}
}

// TestConversationsShareToolsAndSystemPrompt: pages of one block of ten tokens.
func TestConversationsShareToolsAndSystemPrompt(t *testing.T) {
	line := func(tools, system int, model, runs, more string) string {
		return fmt.Sprintf(`{"block_size":10,"hash_id_scope":"local","tool_tokens":%d,"system_tokens":%d,"requests":[{"t":0,"model":%q,"in":60,"out":1,"runs":[%s]}%s]}`,
			tools, system, model, runs, more)
	}
	w, err := Load("x", strings.NewReader(strings.Join([]string{
		line(25, 20, "a", "[1,6]", ""),
		line(25, 20, "a", "[7,6]", `,{"t":0,"model":"a","in":60,"out":1,"runs":[[7,5],[90,1]]},{"t":0,"model":"b","in":60,"out":1,"runs":[[7,6]]},{"t":0,"model":"a","in":30,"out":1,"runs":[[50,3]]}`),
		line(25, 10, "a", "[1,6]", ""),
		line(31, 14, "a", "[1,6]", ""),
		line(0, 0, "a", "[1,1]", `,{"t":0,"type":"subagent","tool_tokens":25,"system_tokens":20,"requests":[{"t":0,"model":"a","in":59,"out":1,"runs":[[100,5]]}]}`),
	}, "\n")), LoadOptions{PageTokens: 10, MeanArrival: 1000})
	if err != nil {
		t.Fatal(err)
	}
	first := w.Requests[0].Pages
	shared := func(i int) (n int) {
		for n < len(w.Requests[i].Pages) && n < len(first) && w.Requests[i].Pages[n] == first[n] {
			n++
		}
		return n
	}
	// Of tokens 0 to 24 the tools' blocks are 0 and 1, of 0 to 44 the system prompt's are 2 and 3.
	for i, want := range []int{6, 4, 4, 0, 0, 2, 0, 0, 4} {
		if got := shared(i); got != want {
			t.Errorf("request %d shares %d pages with the first, want %d", i, got, want)
		}
	}
	if a, b := w.Requests[1].Pages, w.Requests[2].Pages; a[4] != b[4] || a[5] == b[5] {
		t.Errorf("turns of one conversation: %v and %v", a, b)
	}
}

func TestLoadErrors(t *testing.T) {
	ok := `{"block_size":64,"hash_id_scope":"local","requests":[]}` + "\n"
	in := func(request string) string {
		return ok + `{"block_size":64,"hash_id_scope":"local","requests":[` + request + `]}`
	}
	deep := strings.Repeat(`{"t":0,"requests":[`, maxAgentDepth+1) + strings.Repeat("]}", maxAgentDepth+1)
	for _, c := range []struct{ in, want string }{
		{ok + "\n{", "line 3: no JSON object: unexpected end"},
		{`{"block_size":0,"requests":[]}`, "line 1: block_size 0"},
		{`{"block_size":64,"hash_id_scope":"global","requests":[]}`, `hash_id_scope "global"`},
		{`{"block_size":48,"hash_id_scope":"local","requests":[]}`, "not made of whole blocks of 48"},
		{ok + `{"block_size":32,"hash_id_scope":"local","requests":[]}`, "line 2: block_size 32, before 64"},
		{in(`{"t":-1}`), "line 2: t -1"},
		{in(`{"t":1e300}`), "line 2: t 1e+300"},
		{in(`{"t":6e7,"requests":[{"t":6e7}]}`), "line 2: t 6e+07"},
		{in(`{"in":-1}`), "line 2: in -1"},
		{in(`{"out":999999999}`), "line 2: out 999999999"},
		{in(`{"in":640,"runs":[[1]]}`), "run [1] is no first id and length"},
		{in(`{"in":640,"runs":[[1,0]]}`), "run [1 0] is no"},
		{in(`{"in":640,"runs":[[1,11]]}`), "run [1 11] is no"},
		{in(`{"in":640,"runs":[[1,6],[9,5]]}`), "more blocks than 640 tokens fill"},
		{in(`{"in":640,"runs":[[18446744073709551615,1]]}`), "is no first id"},
		{in(`{"in":640,"runs":[[-1,1]]}`), "line 2: requests.runs is a JSON number"},
		{in(`{"tool_tokens":-4,"requests":[]}`), "line 2: tool_tokens -4"},
		{in(`{"system_tokens":-4,"requests":[]}`), "line 2: system_tokens -4"},
		{in(deep), "line 2: agents nested deeper than"},
		{ok + strings.Repeat("x", maxLineBytes+1), "line 2: longer than"},
		{`{"timestamp":5}` + "\n" + `{"timestamp":4}`, "line 2: trace: x: a request at 0.004 s comes after one at 0.005 s"},
		{string(packed(t, []byte(ok+"{"))), "line 2"},
		{string(packed(t, conversations)[:2000]), "gzip"},
		{"\x1f\x8b\x00", "gzip"},
	} {
		_, err := Load("x", strings.NewReader(c.in), LoadOptions{})
		if !errors.Is(err, ErrTrace) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.60q: %v, want %q", c.in, err, c.want)
		}
	}
	var line *LineError
	if _, err := Load("x", strings.NewReader(in(`{"t":-1}`)), LoadOptions{}); !errors.As(err, &line) || line.Line != 2 {
		t.Errorf("%v is not of line 2", err)
	}
}

// TestLoadIsBounded: few bytes of runs may stand for many pages, but not for any number.
func TestLoadIsBounded(t *testing.T) {
	b, err := newBuilder("x", 1, 1)
	if err != nil {
		t.Fatal(err)
	}
	b.accesses = maxAccesses - 2
	if err := b.add(Access{}, []uint64{1, 2}); err != nil {
		t.Error(err)
	}
	if err := b.add(Access{}, []uint64{1}); !errors.Is(err, ErrTrace) {
		t.Errorf("one access too many: %v", err)
	}
	zeros := bytes.NewReader(make([]byte, 100))
	in := bounded{r: zeros, left: 60}
	if _, err := in.Read(make([]byte, 50)); err != nil {
		t.Error(err)
	}
	if _, err := in.Read(make([]byte, 50)); !errors.Is(err, ErrTrace) {
		t.Errorf("behind the bound: %v", err)
	}
}

func TestLoadFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agents.jsonl.gz")
	if err := os.WriteFile(path, packed(t, conversations), 0o600); err != nil {
		t.Fatal(err)
	}
	w, err := LoadFile(path, LoadOptions{})
	if err != nil || w.Name != "agents" || w.PageTokens != DefaultPageTokens {
		t.Errorf("%+v, %v", w.Name, err)
	}
	if _, err := LoadFile(path+"x", LoadOptions{}); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

func FuzzLoad(f *testing.F) {
	f.Add([]byte(`{"timestamp":0,"input_length":1024,"output_length":500,"hash_ids":[0,1]}`))
	f.Add([]byte(`{"block_size":64,"hash_id_scope":"local","tool_tokens":70,"requests":[{"t":1,"in":640,"runs":[[1,10]]},{"t":0,"requests":[{"t":0,"in":64,"runs":[[7,1]]}]}]}`))
	f.Add(packed(f, []byte(`{"block_size":64,"hash_id_scope":"local","requests":[]}`)))
	f.Fuzz(func(t *testing.T, b []byte) {
		w, err := Load("x", bytes.NewReader(b), LoadOptions{PageTokens: 512})
		if err != nil && !errors.Is(err, ErrTrace) {
			t.Fatal(err)
		}
		if err == nil {
			checkTree(t, w)
		}
	})
}
