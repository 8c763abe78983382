package rpc

import (
	"bytes"
	"errors"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
)

// split cuts b after each of the given lengths (bytes of cuts), the rest last; empty buffers included.
func split(b, cuts []byte) mem.BufferSlice {
	var s mem.BufferSlice
	for _, n := range cuts {
		k := min(int(n), len(b))
		s, b = append(s, mem.SliceBuffer(b[:k])), b[k:]
	}
	return append(s, mem.SliceBuffer(b))
}

// collect is a Received that keeps what it is told.
type collect struct {
	Received
	began, promised int
	chunk           []byte
}

func newCollect(h Head) *collect {
	c := &collect{}
	c.Head = h
	c.Begin = func(n int) error { c.began++; c.promised = n; return nil }
	c.Chunk = func(p []byte) error { c.chunk = append(c.chunk, p...); return nil }
	return c
}

var (
	anyBytes = rapid.SliceOfN(rapid.Byte(), 0, 3000)
	anyCuts  = rapid.SliceOfN(rapid.Byte(), 0, 40)
)

func anyFetch(t *rapid.T) *quirev1.FetchResponse {
	m := &quirev1.FetchResponse{
		Page: rapid.Uint32().Draw(t, "page"), Extent: rapid.Uint32().Draw(t, "extent"),
		Offset: rapid.Uint64().Draw(t, "offset"), Header: anyBytes.Draw(t, "header"),
		CutSums: anyBytes.Draw(t, "cut_sums"), Chunk: anyBytes.Draw(t, "chunk"),
	}
	if rapid.Bool().Draw(t, "trailer") {
		m.Trailer = &quirev1.PageStatus{Outcome: quirev1.Outcome_OUTCOME_OK, ExtentIds: [][]byte{{1, 2}}}
	}
	return m
}

func anyWrite(t *rapid.T) *quirev1.WritePagesRequest {
	m := &quirev1.WritePagesRequest{
		Page: rapid.Uint32().Draw(t, "page"), Grant: rapid.Uint32().Draw(t, "grant"),
		Offset: rapid.Uint64().Draw(t, "offset"), Chunk: anyBytes.Draw(t, "chunk"),
	}
	if rapid.Bool().Draw(t, "first") {
		m.Token = &quirev1.FencingToken{BootId: make([]byte, 16), Sequence: rapid.Uint64().Draw(t, "seq")}
		m.Namespace = &quirev1.NamespaceRef{Id: make([]byte, 32), Epoch: 1}
	}
	return m
}

func marshal(t *rapid.T, m proto.Message) []byte {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestChunkIsTheStockWire: what a Chunk puts on the wire is byte for byte what the generated code would.
func TestChunkIsTheStockWire(t *testing.T) {
	codec := NewCodec()
	rapid.Check(t, func(t *rapid.T) {
		f, w := anyFetch(t), anyWrite(t)
		fh := &FetchHead{f.Page, f.Header, f.Extent, f.Offset, f.CutSums, f.Trailer}
		wh := &WriteHead{w.Token, w.Namespace, w.Page, w.Grant, w.Offset}
		for _, c := range []struct {
			m     proto.Message
			head  interface{ Append([]byte) ([]byte, error) }
			chunk []byte
		}{{f, fh, f.Chunk}, {w, wh, w.Chunk}} {
			head, err := c.head.Append(nil)
			if err != nil {
				t.Fatal(err)
			}
			pin := NewPin(func() {})
			got, err := codec.Marshal(&Chunk{Head: head, Body: c.chunk, Pin: pin})
			if err != nil {
				t.Fatal(err)
			}
			if want := marshal(t, c.m); !bytes.Equal(got.Materialize(), want) {
				t.Fatalf("%T: wire differs", c.m)
			}
			got.Free()
		}
	})
}

// TestReceivedReadsTheStockWire: whatever the generated code writes, cut into whatever buffers, arrives the same.
func TestReceivedReadsTheStockWire(t *testing.T) {
	codec := NewCodec()
	fr, wr := newCollect(&FetchHead{}), newCollect(&WriteHead{}) // reused over all messages
	rapid.Check(t, func(t *rapid.T) {
		f, w, cuts := anyFetch(t), anyWrite(t), anyCuts.Draw(t, "cuts")
		fr.chunk, wr.chunk = nil, nil
		if err := codec.Unmarshal(split(marshal(t, f), cuts), &fr.Received); err != nil {
			t.Fatal(err)
		}
		sameFetch(t, fr, f)
		if err := codec.Unmarshal(split(marshal(t, w), cuts), &wr.Received); err != nil {
			t.Fatal(err)
		}
		sameWrite(t, wr, w)
	})
}

type failer interface{ Fatalf(string, ...any) }

func sameFetch(t failer, c *collect, f *quirev1.FetchResponse) {
	h := c.Head.(*FetchHead)
	if h.Page != f.Page || h.Extent != f.Extent || h.Offset != f.Offset || !bytes.Equal(h.Header, f.Header) ||
		!bytes.Equal(h.CutSums, f.CutSums) || !proto.Equal(h.Trailer, f.Trailer) || !bytes.Equal(c.chunk, f.Chunk) || c.promised != len(f.Chunk) {
		t.Fatalf("got %+v chunk %d, want %v", h, len(c.chunk), f)
	}
}

func sameWrite(t failer, c *collect, w *quirev1.WritePagesRequest) {
	h := c.Head.(*WriteHead)
	if h.Page != w.Page || h.Grant != w.Grant || h.Offset != w.Offset || !proto.Equal(h.Token, w.Token) ||
		!proto.Equal(h.Namespace, w.Namespace) || !bytes.Equal(c.chunk, w.Chunk) || c.promised != len(w.Chunk) {
		t.Fatalf("got %+v chunk %d, want %v", h, len(c.chunk), w)
	}
}

func TestReceivedRefuses(t *testing.T) {
	chunk := func(b []byte) []byte { return append(appendChunkTag(nil, len(b)), b...) }
	long := protowire.AppendTag(nil, 2, protowire.BytesType)
	for name, c := range map[string]struct {
		wire []byte
		want error
	}{
		"length beyond the message": {protowire.AppendVarint(long, 1<<62), ErrTruncated},
		"chunk cut short":           {chunk(make([]byte, 100))[:50], ErrTruncated},
		"field after the chunk":     {append(chunk([]byte{1}), 8, 1), ErrAfterBody},
		"two chunks":                {append(chunk([]byte{1}), chunk([]byte{2})...), ErrAfterBody},
		"field zero":                {[]byte{0x02, 0x01, 0x00}, ErrMalformed},
		"varint of eleven bytes":    {bytes.Repeat([]byte{0xff}, 11), ErrMalformed},
		"varint overflow":           {append(bytes.Repeat([]byte{0xff}, 9), 0x7f), ErrMalformed},
		"varint unfinished":         {[]byte{0x88}, ErrTruncated},
		"group":                     {[]byte{3 | 9<<3}, ErrMalformed},
		"fixed cut short":           {[]byte{1 | 9<<3, 0, 0}, ErrTruncated},
		"trailer garbage":           {[]byte{6<<3 | 2, 1, 0xff}, ErrMalformed},
	} {
		r := newCollect(&FetchHead{})
		if err := NewCodec().Unmarshal(split(c.wire, []byte{1, 0, 1}), &r.Received); !errors.Is(err, c.want) || !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
		if len(r.chunk) > 0 {
			t.Errorf("%s: %d bytes delivered", name, len(r.chunk))
		}
	}
}

func TestReceivedPassesCallbackErrors(t *testing.T) {
	stop := errors.New("stop")
	wire := append(appendChunkTag(nil, 3), 1, 2, 3)
	r := newCollect(&FetchHead{})
	r.Begin = func(int) error { return stop }
	if err := NewCodec().Unmarshal(split(wire, nil), &r.Received); err != stop {
		t.Fatal(err)
	}
	r = newCollect(&FetchHead{})
	calls := 0
	r.Chunk = func([]byte) error { calls++; return stop }
	if err := NewCodec().Unmarshal(split(wire, []byte{3}), &r.Received); err != stop || calls != 1 {
		t.Fatal(err, calls)
	}
}

// FuzzReceived: arbitrary bytes in arbitrary buffers never panic, and what is accepted is what the generated code
// reads from the same bytes.
func FuzzReceived(f *testing.F) {
	m, _ := proto.Marshal(&quirev1.FetchResponse{Page: 3, Header: []byte("QEXT"), Offset: 1 << 40, CutSums: make([]byte, 16), Trailer: &quirev1.PageStatus{Outcome: 1}, Chunk: []byte("payload")})
	w, _ := proto.Marshal(&quirev1.WritePagesRequest{Token: &quirev1.FencingToken{Sequence: 9}, Namespace: &quirev1.NamespaceRef{Epoch: 1}, Page: 1, Grant: 2, Offset: 3, Chunk: []byte("payload")})
	f.Add(m, []byte{1, 2, 3})
	f.Add(w, []byte{0, 5, 0, 1})
	f.Add([]byte{0x7a, 0xff, 0xff, 0xff, 0xff, 0x0f}, []byte{2})
	f.Fuzz(func(t *testing.T, wire, cuts []byte) {
		codec := NewCodec()
		fr, fm := newCollect(&FetchHead{}), &quirev1.FetchResponse{}
		if codec.Unmarshal(split(wire, cuts), &fr.Received) == nil {
			if err := proto.Unmarshal(wire, fm); err != nil {
				t.Fatalf("accepted what the generated code refuses: %v", err)
			}
			sameFetch(t, fr, fm)
		}
		wr, wm := newCollect(&WriteHead{}), &quirev1.WritePagesRequest{}
		if codec.Unmarshal(split(wire, cuts), &wr.Received) == nil {
			if err := proto.Unmarshal(wire, wm); err != nil {
				t.Fatalf("accepted what the generated code refuses: %v", err)
			}
			sameWrite(t, wr, wm)
		}
	})
}
