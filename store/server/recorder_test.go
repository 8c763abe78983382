package server_test

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/evict/replay"
	"github.com/quire-kv/quire/namespace"
	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/store/server"
	"github.com/quire-kv/quire/store/server/record"
	"github.com/quire-kv/quire/store/storetest"
)

// tape is a recording in memory.
type tape struct{ bytes.Buffer }

func (*tape) Close() error { return nil }

// engines ask for a prompt and publish what is missing and an answer behind it.
func prompt(s *space, pages []byte, answer int, name string) {
	s.w.t.Helper()
	lead, err := s.exists(pages)
	if err != nil {
		s.w.t.Fatal(err)
	}
	if missing := pages[32*lead:]; len(missing) > 0 {
		s.publishAfter(missing, lead > 0)
	}
	if answer > 0 {
		s.publishAfter(storetest.Chain(name, answer), true)
	}
}

// TestReplayOfARecording: traffic that was recorded replays to the hits that the store had, which had room for all.
func TestReplayOfARecording(t *testing.T) {
	var out tape
	var recorder *record.Recorder
	w := newWorld(t, server.Limits{}, func(o *server.Options) {
		var err error
		if recorder, err = record.New(record.Options{Clock: o.Clock, Out: &out}); err != nil {
			t.Fatal(err)
		}
		o.Recorder = recorder
	})
	a, b := w.as("a", namespace.RoleEngine).open("w", "1"), w.as("b", namespace.RoleEngine).open("w", "1")
	system := storetest.Chain("system", 4)
	for i := range 12 {
		for _, s := range []*space{a, b} {
			turn := bytes.Clone(system)
			for k := range 1 + i%3 { // turns of the conversations 0 to 3, each longer than the one before
				turn = append(turn, storetest.Chain(fmt.Sprintf("c%d-%d", i/3, k), 3)...)
			}
			prompt(s, turn, i%2, fmt.Sprintf("answer %d", i))
		}
		w.clock.Advance(5 * time.Second)
	}
	status, err := w.as("ops", namespace.RoleOperator).admin.Status(ctx(t), &quirev1.StatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	live := status.Counters
	if err := recorder.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	if stats := recorder.Stats(); stats.Dropped != 0 || stats.Requests < live.Lookups {
		t.Errorf("recorded %+v of %d lookups", stats, live.Lookups)
	}
	load, err := replay.Load("recording", bytes.NewReader(out.Bytes()), replay.LoadOptions{PageTokens: 16})
	if err != nil {
		t.Fatal(err)
	}
	got, err := replay.Replay(load, load.Costs(evict.Shape{Params: 1e9, Layers: 4, Heads: 4, Width: 64}), evict.NewLRU(replay.Slots(load.Pages(), load)), load.Pages(), replay.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if uint64(got.Hits) != live.HitKeys || live.HitKeys == 0 || uint64(load.Pages()) != status.Pages {
		t.Errorf("replay: %d hits, %d pages; the store had %d and %d", got.Hits, load.Pages(), live.HitKeys, status.Pages)
	}
}

// TestCounters: what Status counts is what was done.
func TestCounters(t *testing.T) {
	w := newWorld(t, server.Limits{})
	s, op := w.as("a", namespace.RoleEngine).open("w", "1"), w.as("ops", namespace.RoleOperator)
	pages := storetest.Chain("x", 4)
	s.publish(pages[:3*32])
	s.mustExist(pages, 3)
	s.mustExist(pages[:32], 1)
	stream, err := s.page.Fetch(ctx(t), &quirev1.FetchRequest{Namespace: s.ref, Run: s.run(pages)})
	for err == nil {
		_, err = stream.Recv()
	}
	got, err := op.admin.Status(ctx(t), &quirev1.StatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	c := got.Counters
	for name, x := range map[string][2]uint64{
		"lookups": {c.Lookups, 2}, "hit keys": {c.HitKeys, 4}, "missed keys": {c.MissedKeys, 1}, "fetched pages": {c.FetchedPages, 3},
		"fetched bytes": {c.FetchedBytes, 3 * pageBytes}, "committed pages": {c.CommittedPages, 3}, "written bytes": {c.WrittenBytes, 3 * pageBytes},
		"extents in host memory": {got.Tiers[0].Extents, 3}, "evicted": {c.EvictedPages, 0},
	} {
		if x[0] != x[1] {
			t.Errorf("%s: %d, want %d", name, x[0], x[1])
		}
	}
	if m := c.MissedPages; len(m) != 1 || m[0].Reason != quirev1.Reason_REASON_ABSENT || m[0].Count != 1 {
		t.Errorf("missed pages: %v", m)
	}
}
