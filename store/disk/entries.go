package disk

import (
	"cmp"
	"encoding/binary"
	"errors"
	"iter"

	"github.com/quire-kv/quire/store/page"
)

// Bodies of journal records, little-endian, as many entries as the body has room for.
//
//	bury     0 8 number of the segment    8 4 block
//	retire   0 32 namespace   32 8 epoch  40 8 sequence number below which all its regions ended
//	define   0 4 lineage id   4 2 bytes   6 . text
const (
	graveBytes    = 12
	retireBytes   = 48
	defineBytes   = 6
	recordBytes   = blockBytes               // of a journal record, but for a definition that needs more
	recordBody    = recordBytes - frameBytes // what its entries may take
	gravesARecord = recordBody / graveBytes

	// MaxLineageBytes bounds a lineage.
	MaxLineageBytes = 4 << 10
)

var errEntries = errors.New("journal record's entries")

// grave is the place of a region that ended.
type grave struct {
	number uint64
	block  uint32
}

func (g grave) append(b []byte) []byte {
	return binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint64(b, g.number), g.block)
}

// graves yields the entries of a bury record.
func graves(body []byte) iter.Seq[grave] {
	return func(yield func(grave) bool) {
		for ; len(body) >= graveBytes; body = body[graveBytes:] {
			if !yield(grave{binary.LittleEndian.Uint64(body), binary.LittleEndian.Uint32(body[8:])}) {
				return
			}
		}
	}
}

// retirement says that all regions of an epoch with lower sequence numbers have ended.
type retirement struct {
	epochID
	below uint64
}

// epochID names an epoch of a namespace.
type epochID struct {
	namespace page.NamespaceID
	epoch     page.Epoch
}

func (r *retirement) append(b []byte) []byte {
	b = append(b, r.namespace[:]...)
	b = binary.LittleEndian.AppendUint64(b, uint64(r.epoch))
	return binary.LittleEndian.AppendUint64(b, r.below)
}

func retirements(body []byte) iter.Seq[retirement] {
	return func(yield func(retirement) bool) {
		for ; len(body) >= retireBytes; body = body[retireBytes:] {
			le := binary.LittleEndian
			if !yield(retirement{epochID{page.NamespaceID(body[:32]), page.Epoch(le.Uint64(body[32:]))}, le.Uint64(body[40:])}) {
				return
			}
		}
	}
}

func appendDefinition(b []byte, id uint32, lineage string) []byte {
	b = binary.LittleEndian.AppendUint32(b, id)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(lineage)))
	return append(b, lineage...)
}

// definitions calls each for every entry of a define record.
func definitions(body []byte, each func(id uint32, lineage string)) error {
	for len(body) > 0 {
		if len(body) < defineBytes {
			return errEntries
		}
		id, n := binary.LittleEndian.Uint32(body), int(binary.LittleEndian.Uint16(body[4:]))
		if n > MaxLineageBytes || len(body) < defineBytes+n {
			return errEntries
		}
		each(id, string(body[defineBytes:defineBytes+n]))
		body = body[defineBytes+n:]
	}
	return nil
}

func (g grave) compare(o grave) int {
	return cmp.Or(cmp.Compare(g.number, o.number), cmp.Compare(g.block, o.block))
}
