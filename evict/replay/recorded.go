package replay

import "slices"

// recorded are the requests of a recording (docs/formats/trace.md), made whole: an engine that has the beginning of a
// prompt itself asks the store for what comes behind it alone. A name stands for a page and all before it, so the
// recording tells elsewhere what came before.
type recorded struct {
	before map[uint64]uint64 // the page before each page that has one
}

// FromRecording says whether the request is one of a recording rather than of the Mooncake traces.
func (r *Request) FromRecording() bool { return r.PageTokens > 0 }

// blockTokens is the number of tokens of one of the request's blocks.
func (r *Request) blockTokens() int {
	if r.FromRecording() {
		return r.PageTokens
	}
	return BlockTokens
}

// learn takes in that one page stands before another. False: it is told otherwise elsewhere, so names are no chains.
func (d *recorded) learn(id, parent uint64) bool {
	known, ok := d.before[id]
	if !ok && len(d.before) < maxPages {
		d.before[id] = parent
	}
	return !ok || known == parent
}

// whole is the path to the request's last block, as far as the recording has told of it.
func (d *recorded) whole(r *Request) []uint64 {
	blocks := r.FullBlocks()
	if !r.FromRecording() || len(blocks) == 0 {
		return blocks
	}
	if d.before == nil {
		d.before = map[uint64]uint64{}
	}
	chain := r.Parent == nil || d.learn(blocks[0], *r.Parent)
	for i, id := range blocks[1:] {
		chain = d.learn(id, blocks[i]) && chain
	}
	if !chain {
		return blocks
	}
	var path []uint64
	for id, ok := d.before[blocks[0]]; ok; id, ok = d.before[id] {
		if path = append(path, id); len(path)+len(blocks) > maxBlocks {
			return blocks // one page stands before itself
		}
	}
	slices.Reverse(path)
	return append(path, blocks...)
}
