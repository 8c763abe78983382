package e2e

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/quire-kv/quire/store/client"
	"github.com/quire-kv/quire/store/page"
)

// group is the only group of a session's namespace.
func group(s *client.Session) (g page.GroupID, geo client.Geometry) {
	g = page.GroupID(s.Namespace().GetGroups()[0].GetId())
	geo, _ = s.Geometry(g)
	return g, geo
}

func run(s *client.Session, hashes []byte) client.Run {
	g, _ := group(s)
	return client.Run{Group: g, Hashes: hashes}
}

// payload is a whole page whose bytes follow from its hash.
func payload(geo client.Geometry, hash []byte) []byte {
	b := make([]byte, page.PayloadBytes(geo.Full(), geo.CellBytes))
	x := binary.LittleEndian.Uint64(hash)
	for i := 0; i+8 <= len(b); i += 8 {
		x = x*6364136223846793005 + 1442695040888963407
		binary.LittleEndian.PutUint64(b[i:], x)
	}
	return b
}

// publish publishes whole pages of a chain from its root.
func publish(ctx context.Context, s *client.Session, hashes []byte) ([]client.PageResult, error) {
	return publishWith(ctx, s, hashes, client.PublishOptions{})
}

// publishDurably answers an error unless all pages are on disk.
func publishDurably(ctx context.Context, s *client.Session, hashes []byte) error {
	rs, err := publishWith(ctx, s, hashes, client.PublishOptions{Durable: true})
	if err != nil {
		return err
	}
	if good := client.GoodPrefix(rs); good < len(rs) {
		return fmt.Errorf("page %d was refused: %w", good, rs[good].Reason)
	}
	return nil
}

func publishWith(ctx context.Context, s *client.Session, hashes []byte, o client.PublishOptions) ([]client.PageResult, error) {
	_, geo := group(s)
	items := make([]client.Item, len(hashes)/32)
	for i := range items {
		items[i].Bytes = payload(geo, hashes[32*i:])
	}
	items[0].Root = true
	return s.Publish(ctx, run(s, hashes), page.View{}, nil, items, o)
}

// fetch reads whole pages and compares every byte of those that are served; served is how many were.
func fetch(ctx context.Context, s *client.Session, hashes []byte) (rs []client.PageResult, served int, err error) {
	_, geo := group(s)
	dst := make([][]byte, len(hashes)/32)
	for i := range dst {
		dst[i] = make([]byte, page.PayloadBytes(geo.Full(), geo.CellBytes))
	}
	rs, err = s.FetchInto(ctx, run(s, hashes), page.View{}, nil, dst, nil)
	for i, r := range rs {
		if r.Outcome != client.OK {
			continue
		}
		served++
		if string(dst[i]) != string(payload(geo, hashes[32*i:])) {
			return rs, served, fmt.Errorf("page %d: %w", i, errWrongBytes)
		}
	}
	return rs, served, err
}

// provenanceID is the third field of a NamespaceRef.
func provenanceID(s *client.Session) [32]byte { return sha256.Sum256(s.Provenance()) }
