package playback

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/quire-kv/quire/namespace"
	"github.com/quire-kv/quire/store/page"
)

// hashBytes is how long the names of pages are.
const hashBytes = 32

// Spec is an identity for one play: what its pages cost is what those of model do, and each has pageBytes of payload, a
// multiple of PageUnit. Equal names and runs are equal identities: a play with a run that was used before finds what is
// left of the pages. The first group is that of the pages.
func Spec(model *namespace.Spec, name, run string, pageTokens uint32, pageBytes int) (*namespace.Spec, error) {
	at := slices.IndexFunc(model.Groups, func(g namespace.Group) bool {
		return g.Kind == namespace.KindFull || g.Kind == namespace.KindMLA
	})
	if at < 0 {
		return nil, fmt.Errorf("no layer of %s sees all that is before: pages of a trace have no group there", model.Model.ID)
	}
	if unit := PageUnit(pageTokens); pageBytes <= 0 || pageBytes%unit != 0 {
		return nil, fmt.Errorf("pages of %d bytes: a page of %d tokens has a multiple of %d", pageBytes, pageTokens, unit)
	}
	// Layers that no group owns count as seeing all, so one of them stands for those of the group.
	width := uint32(pageBytes / PageUnit(pageTokens))
	groups := []namespace.Group{{
		Kind: namespace.KindFull, Layers: model.Groups[at].Layers[:1], PageTokens: pageTokens, Heads: 1, Grade: page.Elements,
		Components: []namespace.Component{
			{Name: "k", Width: width, Bits: 8, DType: "uint8", Scale: "none"},
			{Name: "v", Width: width, Bits: 8, DType: "uint8", Scale: "none"},
		},
	}}
	for _, g := range model.Groups { // the others say how far their layers see; they get no pages
		if g.Kind == namespace.KindWindow || g.Kind == namespace.KindRecurrent {
			g.PageTokens = pageTokens
			groups = append(groups, g)
		}
	}
	s := *model
	s.Model = namespace.Model{
		ID: "trace/" + name, Weights: namespace.DigestOf([]byte("playback " + run)), Config: namespace.DigestOf([]byte(model.Model.ID)),
	}
	s.Hash = namespace.HashRule{
		Algorithm: "sha256", Seed: namespace.DigestOf(nil), Unit: pageTokens, Bytes: hashBytes,
		Probe: namespace.ProbeDigest([][]byte{appendHash(nil, 0)}),
	}
	s.Groups, s.Strict, s.WeakNames, s.Record = groups, false, false, namespace.Recordings{}
	s.Prov = namespace.Provenanced{Engine: "playback", Version: "1", Runner: "playback", Backend: "none", Kernel: "none", Arch: "none"}
	return &s, s.Validate()
}

// PageUnit is what the bytes of a page are a multiple of: one for each token of k and of v.
func PageUnit(pageTokens uint32) int { return 2 * int(pageTokens) }

// appendHash appends the name of page p. A page of a workload has one place, so its number says all that is before.
func appendHash(dst []byte, p int32) []byte {
	h := sha256.Sum256(binary.LittleEndian.AppendUint32([]byte("playback page "), uint32(p)))
	return append(dst, h[:]...)
}

// fill writes the payload of the page of this name.
func fill(b, hash []byte) {
	for n := 0; n < len(b); {
		n += copy(b[n:], hash)
	}
}
