package client

import (
	"encoding/binary"

	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/kernels"
	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/rpc"
)

// lendBytes is the shortest run that is worth a message of its own; shorter ones are gathered.
const lendBytes = page.MaxPieceBytes

// source is where the payload of one grant comes from: a rectangle of an item.
//
//	grant payload  [head][layer] of the rectangle ──runs──> [head][layer] of the item ──order──> the caller's memory
type source struct {
	item   []byte
	runs   page.Runs
	order  *order
	pieces page.Pieces
	cell   int
	total  int
}

func (p *publish) source(i int, v page.View) *source {
	return &source{
		item: p.items[i].Bytes, order: p.order, runs: page.RunsBetween(v, p.view, v, p.geo.CellBytes),
		pieces: page.PiecesOf(int(v.L1-v.L0), int(p.geo.CellBytes)), cell: int(p.geo.CellBytes),
		total: int(page.PayloadBytes(v, p.geo.CellBytes)),
	}
}

// lendable says whether the payload lies in runs that are worth sending as they lie.
func (s *source) lendable() bool {
	return s.order == nil && (s.runs.N == 1 || s.runs.Bytes >= lendBytes)
}

// unit is the whole cells that a piece is of, or the pieces that a cell is of, from off on: what is gathered at once.
func (s *source) unit(off int) int {
	if s.cell > page.MaxPieceBytes {
		return s.cell
	}
	_, n := s.pieces.Span(s.pieces.At(off))
	return n
}

// fill copies the unit at off into dst.
func (s *source) fill(dst []byte, off int) error {
	to, _, _ := s.runs.Locate(off) // a unit never leaves a run: it is of one head
	if s.order == nil {
		copy(dst, s.item[to:])
		return nil
	}
	for at := 0; at < len(dst); at += s.cell {
		if err := s.order.gather(dst[at:at+s.cell], s.item, (to+at)/s.cell); err != nil {
			return err
		}
	}
	return nil
}

// summed is fill, and appends the sums of the pieces that it wrote. What is in no order of the caller's is summed while
// it is copied.
func (s *source) summed(sums, dst []byte, off int) ([]byte, error) {
	if s.order != nil {
		err := s.fill(dst, off)
		return s.appendSums(sums, dst), err
	}
	to, _, _ := s.runs.Locate(off)
	for len(dst) > 0 {
		n := s.piece(len(dst))
		sums = binary.LittleEndian.AppendUint64(sums, kernels.CopySum(dst[:n], s.item[to:to+n]))
		dst, to = dst[n:], to+n
	}
	return sums, nil
}

// piece is the length of the next piece of a unit of which n bytes are left.
func (s *source) piece(n int) int {
	if s.cell <= page.MaxPieceBytes {
		return n
	}
	return min(page.MaxPieceBytes, n)
}

// appendSums appends the sums of the pieces of one unit that lies in b.
func (s *source) appendSums(sums, b []byte) []byte {
	for len(b) > 0 {
		n := s.piece(len(b))
		sums, b = binary.LittleEndian.AppendUint64(sums, kernels.Sum(b[:n])), b[n:]
	}
	return sums
}

// sumsOf are the sums of the whole item, without sending it.
func (p *publish) sumsOf(i int) ([]byte, error) {
	s := p.source(i, p.view)
	st := p.s.c.stage(s)
	defer p.s.c.stages.Put(st)
	var sums []byte
	for off := 0; off < s.total; {
		n := s.unit(off)
		b := (*st)[:n]
		if err := s.fill(b, off); err != nil {
			return nil, err
		}
		sums, off = s.appendSums(sums, b), off+n
	}
	return sums, nil
}

// send sends the grants of one page and makes their headers from the sums of exactly what was sent.
func (p *publish) send(u *upload, g *granted) error {
	for k, v := range g.views {
		u.head.Page, u.head.Grant, u.head.Offset = g.page, uint32(k), 0
		s := p.source(g.item, v)
		send := u.staged
		if s.lendable() && !p.opt.Stage && (u.sharing == nil || u.reaches(s.item)) {
			send = u.lent
		}
		sums, err := send(s)
		if err != nil {
			return err
		}
		raw, err := p.header(g.item, v, sums).AppendEncode(nil)
		if err != nil {
			return err
		}
		g.headers = append(g.headers, raw)
	}
	return nil
}

// header is what travels with the extent of item i that is of view v.
func (p *publish) header(i int, v page.View, sums []byte) *page.Header {
	s, it := p.s, &p.items[i]
	parent, unknown := p.parent(i)
	h := &page.Header{
		Key: page.Key{
			Family: page.Family{Namespace: s.id, Epoch: s.epoch, Scope: p.run.Scope, Group: p.run.Group},
			Hash:   s.hash(&p.run, i),
		},
		Extent: page.ExtentID{Writer: s.c.writer, Seq: s.c.seq.Add(1)},
		Parent: parent, ParentUnknown: unknown, Durable: p.opt.Durable, Tokens: p.geo.Tokens,
		View: v, Heads: p.geo.Heads, Layers: p.geo.Layers, CellBytes: p.geo.CellBytes, Grade: p.geo.Grade,
		PayloadBytes: page.PayloadBytes(v, p.geo.CellBytes), CreatedUnix: uint64(s.c.opt.Clock.Wall()),
		DeclaredFLOPs: it.DeclaredFLOPs, Provenance: s.canonical,
	}
	if it.Expire > 0 {
		h.ExpiryUnix = uint32(clock.WallOf(s.c.opt.Clock.Wall().Time().Add(it.Expire)))
	}
	h.SetSums(sums)
	return h
}

// lent sends the runs of s as they lie in the caller's memory, each piece summed just before the chunk that ends it.
func (u *upload) lent(s *source) (sums []byte, err error) {
	chunk := u.s.c.chunkBytes()
	piece, count := 0, s.pieces.Count(s.total/max(s.pieces.HeadBytes, 1))
	sums = make([]byte, 0, 8*count)
	off := 0
	for k := range s.runs.N {
		_, at, left := s.runs.Run(k)
		for left > 0 {
			n := min(chunk, left)
			for ; piece < count; piece++ {
				from, bytes := s.pieces.Span(piece)
				if from+bytes > off+n {
					break
				}
				in := at + from - off // a piece may have begun in the chunk before
				sums = binary.LittleEndian.AppendUint64(sums, kernels.Sum(s.item[in:in+bytes]))
			}
			if err := u.send(s.item[at:at+n], u.pin); err != nil {
				return nil, err
			}
			off, at, left = off+n, at+n, left-n
		}
	}
	return sums, nil
}

// staged gathers s into memory of the client's own, unit by unit, sums it there and sends it from there.
func (u *upload) staged(s *source) (sums []byte, err error) {
	c := u.s.c
	sums = make([]byte, 0, 8*s.pieces.Count(s.total/max(s.pieces.HeadBytes, 1)))
	for off := 0; off < s.total; {
		st, free, err := u.stage(s, s.total-off)
		if err != nil {
			return nil, err
		}
		fill := 0
		for off < s.total && fill+s.unit(off) <= len(st) {
			b := st[fill : fill+s.unit(off)]
			if sums, err = s.summed(sums, b, off); err != nil {
				free()
				return nil, err
			}
			fill, off = fill+len(b), off+len(b)
		}
		pin := rpc.NewPin(free)
		for at := 0; at < fill && err == nil; at += c.chunkBytes() {
			err = u.send(st[at:min(at+c.chunkBytes(), fill)], pin)
		}
		pin.Done()
		if err != nil {
			return nil, err
		}
	}
	return sums, nil
}

// stage is memory for at least one unit of s and one chunk, to be given back to c.stages.
func (c *Client) stage(s *source) *[]byte {
	n := max(maxSendBytes, s.cell)
	if st, ok := c.stages.Get().(*[]byte); ok && len(*st) >= n {
		return st
	}
	b := make([]byte, n)
	return &b
}

func (c *Client) chunkBytes() int { return min(maxSendBytes, int(c.caps.GetMaxChunkBytes())) }
