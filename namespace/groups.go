package namespace

import (
	"crypto/sha256"
	"reflect"
	"slices"
	"strings"

	"github.com/quire-kv/quire/store/page"
)

// ParentRule says what a group's pages need before them.
type ParentRule uint8

// The rules.
const (
	ParentPrefix ParentRule = iota // every page before
	ParentWindow                   // the pages within the window
	ParentNone                     // none: each page is a whole state
)

// GroupInfo is a group as a node needs it.
type GroupInfo struct {
	ID            page.GroupID
	Kind          string
	PageTokens    uint32
	Window        uint32 // tokens; 0: none
	Heads, Layers uint16
	CellBytes     uint32 // of one (kv head, layer)
	Components    uint16
	Grade         page.Grade
	PackingID     [32]byte // SHA-256 of the packing's name; zeros for none
	Parents       ParentRule
}

// PageBytes is the payload of one whole page.
func (g *GroupInfo) PageBytes() uint64 {
	return uint64(g.Heads) * uint64(g.Layers) * uint64(g.CellBytes)
}

// GroupInfos resolves the groups of a valid spec, ordered by kind and first layer.
func (s *Spec) GroupInfos() []GroupInfo {
	groups := slices.Clone(s.Groups)
	slices.SortFunc(groups, func(a, b Group) int { return compareGroups(&a, &b) })
	out := make([]GroupInfo, len(groups))
	for i := range groups {
		out[i] = groups[i].Info()
	}
	return out
}

func compareGroups(a, b *Group) int {
	if c := strings.Compare(a.Kind, b.Kind); c != 0 {
		return c
	}
	return slices.Compare(a.Layers, b.Layers)
}

// Info resolves one group of a valid spec.
func (g *Group) Info() GroupInfo {
	info := GroupInfo{
		ID: g.ID(), Kind: g.Kind, PageTokens: g.PageTokens, Window: g.Window, Heads: g.Heads,
		Layers: uint16(len(g.Layers)), CellBytes: uint32(g.CellBytes()), Components: uint16(len(g.Components)),
		Grade: g.Grade, Parents: g.parents(),
	}
	if g.Packing != "" {
		info.PackingID = sha256.Sum256([]byte(g.Packing))
	}
	return info
}

// ID is the digest of the group's representation, never an engine's index.
func (g *Group) ID() page.GroupID {
	var w walker
	w.walk(reflect.ValueOf(g).Elem(), "", Representation)
	slices.SortFunc(w.out, func(a, b Factor) int { return strings.Compare(a.Path, b.Path) })
	h := sha256.New()
	h.Write([]byte{'q', 'g', 'r', canonicalVersion})
	h.Write(encodeFactors(w.out, Representation, Representation))
	return page.GroupID(h.Sum(nil))
}

// CellBytes is the bytes of one (kv head, layer): all tokens of a page, or one state for recurrent groups.
func (g *Group) CellBytes() uint64 {
	var bits uint64
	for _, c := range g.Components {
		bits += uint64(c.Width) * uint64(c.Bits)
	}
	if g.Kind == KindRecurrent {
		return bits / 8
	}
	return bits * uint64(g.PageTokens) / 8
}

// TokenBytes is what one token costs over all heads and layers; 0 for recurrent groups, whose pages hold one state.
func (g *Group) TokenBytes() uint64 {
	if g.Kind == KindRecurrent || g.PageTokens == 0 {
		return 0
	}
	return g.CellBytes() * uint64(g.Heads) * uint64(len(g.Layers)) / uint64(g.PageTokens)
}

// TokenBytes is what one token of context costs in all groups that grow with it.
func (s *Spec) TokenBytes() uint64 {
	var n uint64
	for i := range s.Groups {
		n += s.Groups[i].TokenBytes()
	}
	return n
}

func (g *Group) parents() ParentRule {
	switch g.Kind {
	case KindWindow:
		return ParentWindow
	case KindRecurrent:
		return ParentNone
	}
	return ParentPrefix
}
