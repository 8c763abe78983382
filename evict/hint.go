package evict

// Hint is what a client says of a page's future. It is advice: a policy may let it reorder the pages of its own tenant
// and nothing else, so that a client that lies hurts nobody but its tenant. The zero Hint says nothing, and leaves in
// force what was said before.
type Hint struct {
	Category Category
	Next     Next
	Reuse    float32 // seconds from now until the next use that is expected; 0: not known
	Answer   uint32  // tokens of the answer to the request that used the page last, which has ended; 0: not known
}

// Category is the kind of work that a page belongs to.
type Category uint8

// The categories.
const (
	CategoryUnknown     Category = iota
	CategoryInteractive          // a person waits, and will answer
	CategoryAgent                // a program works in turns
	CategoryBatch                // nobody waits; each prompt once
	CategorySystem               // a prefix that many requests share: system prompt, tools
	NumCategories
)

// Next is what comes after the request that a page belongs to.
type Next uint8

// What may come.
const (
	NextUnknown  Next = iota
	NextToolCall      // the session waits for a tool and goes on
	NextNothing       // the session has ended
	NumNexts
)
