package tier

import (
	"context"

	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/store/page"
)

// Note is what a durable tier keeps beside the bytes of a region and gives back by Recover.
type Note struct {
	Expiry  clock.Wall // 0: never
	Lineage string     // opaque to the tier; few distinct values, kept in a dictionary
}

// Recovered is one region that outlived its process: its place, what its header says, and its note.
type Recovered struct {
	Region        Region
	Key           page.Key
	Extent        page.ExtentID
	Parent        page.Hash
	ParentUnknown bool
	View          page.View
	DeclaredFLOPs float64
	Note          Note
}

// Durable is a tier whose regions outlive the process. Its regions are of the layout of page.PayloadOffset.
//
// A write covers a whole region, once, and carries an Op.Note; its Done means that the region survives a crash. The
// first page.HeadBytes of a region are the tier's: what they hold is not written, and a read of them gives zeros.
// What Free gave back does not come back by Recover once a Barrier after it is done.
type Durable interface {
	Driver
	// Recover tells of every region that is live, each once, in no order, a few thousand at a time, and asks who owns
	// each: a zero Owner's region is buried and freed. It must be called before the first Alloc, and once.
	Recover(ctx context.Context, each func(batch []Recovered, owners []Owner) error) error
	// Bury makes sure that a region, which may still be read, is never told of by Recover: its page was deleted. Free
	// implies it.
	Bury(r Region)
	// Retire buries all regions of a namespace's epoch, also those freed long ago.
	Retire(id page.NamespaceID, e page.Epoch)
	// Barrier calls done when all that was buried, freed and retired before is durable, or cannot be made so.
	Barrier(done func(error))
}
