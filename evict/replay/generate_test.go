package replay

import (
	"bytes"
	"math"
	"reflect"
	"testing"
)

// TestGeneratedTracesAreLikeTheReal: what decides how a cache does is near, over eight seeds.
func TestGeneratedTracesAreLikeTheReal(t *testing.T) {
	w, _ := conversation(t)
	f, want := FitTo(w), StatsOf(w)
	const seeds = 8
	var mean Stats
	for seed := range uint64(seeds) {
		got := StatsOf(generated(t, f, 0, seed))
		if got.Requests != want.Requests {
			t.Errorf("seed %d: %d requests, want %d", seed, got.Requests, want.Requests)
		}
		addStats(&mean, got, 1./seeds)
	}
	for _, c := range []struct {
		what              string
		got, want, within float64
	}{
		{"hit rate", mean.HitRate, want.HitRate, 0.03},
		{"share of pages used once", mean.UsedOnce, want.UsedOnce, 0.05},
		{"share of the top pages", mean.Top1Percent, want.Top1Percent, 0.04},
		{"share of the top families", mean.TopFamilies, want.TopFamilies, 0.02},
		{"roots a request", mean.Families, want.Families, 0.02},
		{"LRU with a hundredth", mean.LRU1, want.LRU1, 0.03},
		{"LRU with a fifth", mean.LRU20, want.LRU20, 0.04},
		{"pages a request, log", math.Log(mean.MeanPages), math.Log(want.MeanPages), 0.1},
		{"median gap, log", math.Log(mean.GapP50), math.Log(want.GapP50), 0.5},
		{"seconds, log", math.Log(mean.Seconds), math.Log(want.Seconds), 0.1},
	} {
		if math.Abs(c.got-c.want) > c.within {
			t.Errorf("%s is %.4f, want %.4f within %.2f", c.what, c.got, c.want, c.within)
		}
	}
}

func generated(t *testing.T, f *Fit, requests int, seed uint64) *Workload {
	t.Helper()
	q, err := f.Generate(requests, seed)
	if err != nil {
		t.Fatal(err)
	}
	w, err := FromRequests("generated", q)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// addStats adds a share of every figure.
func addStats(sum *Stats, s Stats, share float64) {
	to, from := reflect.ValueOf(sum).Elem(), reflect.ValueOf(s)
	for i := range to.NumField() {
		if to.Field(i).Kind() == reflect.Float64 {
			to.Field(i).SetFloat(to.Field(i).Float() + share*from.Field(i).Float())
		}
	}
}

// TestGeneratedTextReadsBack: what is written is the Mooncake format, byte for byte the same for the same seed, of any length,
// and fresh: no block id of the real trace is used for what it was.
func TestGeneratedTextReadsBack(t *testing.T) {
	w, _ := conversation(t)
	f := FitTo(w)
	text := func(requests int, seed uint64) []byte {
		q, err := f.Generate(requests, seed)
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if err := WriteMooncake(&b, q); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	a := text(3000, 7)
	if !bytes.Equal(a, text(3000, 7)) || bytes.Equal(a, text(3000, 8)) {
		t.Error("text is not that of the seed")
	}
	back, err := Load("generated", bytes.NewReader(a), LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if want := generated(t, f, 3000, 7); !reflect.DeepEqual(back, want) || len(back.Requests) != 3000 {
		t.Errorf("%d requests, %d pages; want 3000, %d", len(back.Requests), back.Pages(), want.Pages())
	}
}

// TestHubsAreFound: a system prompt of three blocks, and one of two more below it, each with many that go on.
func TestHubsAreFound(t *testing.T) {
	var paths [][]uint64
	for i := range uint64(20) {
		paths = append(paths, []uint64{1, 2, 3, 100 + i}, []uint64{1, 2, 3, 4, 5, 200 + i, 300}, []uint64{1, 2, 3, 4, 5, 200 + i, 300, 301})
	}
	f := FitTo(workloadOf(t, paths...))
	if want := []hub{{-1, 3}, {0, 2}}; !reflect.DeepEqual(f.hubs, want) {
		t.Errorf("hubs %v, want %v", f.hubs, want)
	}
	want := []step{
		{hub: 0, added: 1}, {hub: 1, added: 2}, {hub: 1, goesOn: true, gap: 1, length: 7, turns: 1, added: 1},
	}
	if got := f.steps[30:33]; !reflect.DeepEqual(got, want) {
		t.Errorf("steps %+v, want %+v", got, want)
	}
	s := StatsOf(generated(t, f, 0, 1))
	if s.Families*float64(s.Requests) != 1 {
		t.Errorf("%+v: all share one root", s)
	}
}

func TestGenerateRefuses(t *testing.T) {
	w, err := Load("x", bytes.NewReader(conversations), LoadOptions{PageTokens: 64})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := FitTo(w).Generate(0, 1); err == nil {
		t.Error("pages of 64 tokens became blocks of 512")
	}
	w, _ = conversation(t)
	if _, err := FitTo(w).Generate(maxGenerated+1, 1); err == nil {
		t.Error("too many requests were made")
	}
	if q, err := FitTo(workloadOf(t)).Generate(5, 1); err != nil || len(q) != 0 {
		t.Errorf("of nothing came %v, %v", q, err)
	}
}

// TestStatsByHand: two families; pages 1 and 1-2 are used three times, the first after 1 s, then after 2 s.
func TestStatsByHand(t *testing.T) {
	w := workloadOf(t, []uint64{1, 2}, []uint64{1, 2, 3}, []uint64{9}, []uint64{1, 2})
	got := StatsOf(w)
	want := Stats{
		Requests: 4, Seconds: 3, Accesses: 8, Pages: 4, HitRate: 0.5, MeanPages: 2, PagesP90: 2, GapP10: 1, GapP50: 1, GapP90: 2,
		UsedOnce: 0.5, Top1Percent: 3. / 8, Families: 0.5, TopFamilies: 1, LRU1: 1. / 8, LRU5: 1. / 8, LRU20: 1. / 8,
	}
	if got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if got := StatsOf(workloadOf(t)); got != (Stats{}) {
		t.Errorf("of nothing: %+v", got)
	}
}
