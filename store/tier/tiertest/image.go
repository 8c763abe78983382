package tiertest

import (
	"encoding/binary"

	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/tier"
)

// leastRegion is the smallest region that holds a header and a payload.
const leastRegion = page.PayloadAlign + 1

func ownerOf(seed uint64) tier.Owner {
	return tier.Owner{Shard: uint32(seed >> 32), Extent: uint32(seed)}
}

// headerOf is the header of an extent that fills h: one cell, whose bytes tell its seed.
func headerOf(h held) (page.Header, []byte) {
	view := page.View{H1: 1, L1: 1}
	at := page.PayloadAlign
	for want := 0; want != at; {
		want = at
		at = page.PayloadOffset(page.EncodedHeaderBytes(view, uint32(int(h.Bytes)-want), 0))
	}
	payload := make([]byte, int(h.Bytes)-at)
	for i := 0; i+8 <= len(payload); i += 512 {
		binary.LittleEndian.PutUint64(payload[i:], h.seed*0x9E3779B97F4A7C15+uint64(i))
	}
	hash, err := page.MakeHash(binary.BigEndian.AppendUint64(make([]byte, 8), h.seed))
	if err != nil {
		panic(err)
	}
	x := page.Header{
		Key:    page.Key{Family: page.Family{Namespace: h.class.Namespace, Epoch: max(h.class.Epoch, 1)}, Hash: hash},
		Extent: page.ExtentID{Writer: [16]byte{1}, Seq: h.seed}, ParentUnknown: h.seed%2 == 0,
		Tokens: 16, View: view, Heads: 1, Layers: 1, CellBytes: uint32(len(payload)), Grade: page.Whole, PayloadBytes: uint64(len(payload)),
		DeclaredFLOPs: float64(h.seed % 1000),
	}
	sums, err := page.AppendSumsOf(nil, payload, view, x.CellBytes)
	if err != nil {
		panic(err)
	}
	x.SetSums(sums)
	return x, payload
}

// image is the bytes of region h, as the store would lay them out.
func image(h held) []byte {
	x, payload := headerOf(h)
	b, err := x.AppendEncode(make([]byte, page.HeadBytes, h.Bytes))
	if err != nil {
		panic(err)
	}
	b = b[:h.Bytes]
	copy(b[len(b)-len(payload):], payload)
	return b
}

func noteOf(h held) *tier.Note {
	return &tier.Note{Expiry: clock.Wall(h.seed % 3), Lineage: [...]string{"", "one", "another"}[h.seed%3]}
}

// told is what a durable tier must tell of h.
func told(h held) tier.Recovered {
	x, _ := headerOf(h)
	return tier.Recovered{
		Region: h.Region, Key: x.Key, Extent: x.Extent, Parent: x.Parent, ParentUnknown: x.ParentUnknown, View: x.View,
		DeclaredFLOPs: x.DeclaredFLOPs, Note: *noteOf(h),
	}
}
