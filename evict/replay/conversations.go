package replay

import (
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"slices"
)

// Conversation is one line of a trace of agents: what one coding session asked of its models. This is the compact form
// of the public traces of callanjfox/kv-cache-tester:
//
//	{"block_size":64, "hash_id_scope":"local", "tool_tokens":12974, "system_tokens":4243, "requests":[
//	  {"t":0.0, "model":"m", "in":71175, "out":169, "runs":[[1,1112]]},
//	  {"t":9.5, "type":"subagent", "tool_tokens":8306, "system_tokens":735, "requests":[ ... ]}, ... ]}
//
// Ids of blocks are local to the conversation and name full blocks by their prefix. runs are first ids and lengths.
// Times are seconds since the conversation began; those of a sub-agent, since it began. A prompt begins with the tools,
// then the system prompt.
type Conversation struct {
	Line         int // of the trace, from 1
	BlockTokens  uint32
	ToolTokens   int
	SystemTokens int
	Turns        []Turn // of sub-agents too, in no order
}

// Turn is one request of a conversation.
type Turn struct {
	Seconds float64 // since the conversation began
	Agent   int     // 0: the conversation itself; else one sub-agent
	Model   string
	Input   int // tokens
	Output  int
	Runs    [][2]uint64 // first id and length

	tool, system int // tokens of the agent's prompt
}

// Bounds of one conversation, beside that of its line.
const (
	maxAgentDepth  = 4
	maxTurnSeconds = 1e8 // three years
)

// ConversationReader reads a trace of agents, conversation by conversation. Memory is bounded by one line.
type ConversationReader struct{ lines }

// NewConversationReader reads from r.
func NewConversationReader(r io.Reader) *ConversationReader { return &ConversationReader{linesOf(r)} }

// item is a request or a sub-agent, as the text has it.
type item struct {
	T            float64    `json:"t"`
	Model        string     `json:"model"`
	In           int        `json:"in"`
	Out          int        `json:"out"`
	Runs         [][]uint64 `json:"runs"`
	BlockSize    uint32     `json:"block_size"`
	Scope        string     `json:"hash_id_scope"`
	ToolTokens   int        `json:"tool_tokens"`
	SystemTokens int        `json:"system_tokens"`
	Requests     []item     `json:"requests"`
}

// Next is the next conversation, or io.EOF. Empty lines are skipped; anything else that is no conversation is a
// *LineError.
func (r *ConversationReader) Next() (*Conversation, error) {
	var it item
	if err := r.decode(&it); err != nil {
		return nil, err
	}
	c := &Conversation{Line: r.line, BlockTokens: it.BlockSize, ToolTokens: it.ToolTokens, SystemTokens: it.SystemTokens}
	if text := c.fill(&it); text != "" {
		return nil, &LineError{r.line, text}
	}
	return c, nil
}

func (c *Conversation) fill(it *item) (wrong string) {
	switch {
	case it.BlockSize == 0 || it.BlockSize > maxTokens:
		return fmt.Sprintf("block_size %d is not between 1 and %d", it.BlockSize, maxTokens)
	case it.Scope != "local":
		return fmt.Sprintf("hash_id_scope %q; only local is known", it.Scope)
	}
	agents := 0
	return c.turns(it, 0, 0, &agents)
}

// turns takes in the requests of one agent, and of those that it started.
func (c *Conversation) turns(agent *item, began float64, depth int, agents *int) (wrong string) {
	if text := outside("tool_tokens", agent.ToolTokens); text != "" {
		return text
	}
	if text := outside("system_tokens", agent.SystemTokens); text != "" {
		return text
	}
	number := *agents
	for i := range agent.Requests {
		it := &agent.Requests[i]
		if !(it.T >= 0 && began+it.T <= maxTurnSeconds) {
			return fmt.Sprintf("t %g is not between 0 and %g", it.T, maxTurnSeconds)
		}
		if it.Requests != nil {
			if depth == maxAgentDepth {
				return fmt.Sprintf("agents nested deeper than %d", maxAgentDepth)
			}
			*agents++
			if text := c.turns(it, began+it.T, depth+1, agents); text != "" {
				return text
			}
			continue
		}
		turn := Turn{
			Seconds: began + it.T, Agent: number, Model: it.Model, Input: it.In, Output: it.Out,
			tool: agent.ToolTokens, system: agent.SystemTokens,
		}
		if text := turn.fill(it, c.BlockTokens); text != "" {
			return text
		}
		c.Turns = append(c.Turns, turn)
	}
	return ""
}

func (t *Turn) fill(it *item, blockTokens uint32) (wrong string) {
	if text := outside("in", it.In); text != "" {
		return text
	}
	if text := outside("out", it.Out); text != "" {
		return text
	}
	most := uint64(it.In) / uint64(blockTokens)
	blocks := uint64(0)
	for _, run := range it.Runs {
		if len(run) != 2 || run[1] == 0 || run[1] > most || run[0] > 1<<62 {
			return fmt.Sprintf("run %v is no first id and length", run)
		}
		if blocks += run[1]; blocks > most {
			return fmt.Sprintf("runs have more blocks than %d tokens fill", it.In)
		}
		t.Runs = append(t.Runs, [2]uint64{run[0], run[1]})
	}
	return ""
}

func outside(name string, n int) string {
	if n < 0 || n > maxTokens {
		return fmt.Sprintf("%s %d is not between 0 and %d", name, n, maxTokens)
	}
	return ""
}

// placed is a turn at its place in the workload.
type placed struct {
	Turn
	at     float64
	number int          // of the conversation
	first  *[][2]uint64 // runs of the agent's first request
}

// loadConversations puts conversations on one clock and gives their blocks names.
//
// Conversations begin one after the other in the order of the trace, apart by exponential times of the given mean: a
// Poisson process. Their own times are kept.
//
// Blocks of different models are different. Those of the tools are the same in all agents with equal tool_tokens, and
// those of the system prompt in all that have equal system_tokens too: the trace does not give the text, and equal
// counts of so many tokens are taken for equal text. It holds of blocks that lie in this part in the agent's first
// request. All others belong to their conversation alone.
func loadConversations(name string, r io.Reader, o LoadOptions) (*Workload, error) {
	in := NewConversationReader(r)
	random := rand.New(rand.NewPCG(o.Seed, 0))
	var all []placed
	blockTokens, start := uint32(0), 0.0
	for number := 0; ; number++ {
		c, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		if number > 0 {
			if start += o.MeanArrival * random.ExpFloat64(); c.BlockTokens != blockTokens {
				return nil, &LineError{c.Line, fmt.Sprintf("block_size %d, before %d", c.BlockTokens, blockTokens)}
			}
		}
		blockTokens = c.BlockTokens
		first := map[int]*[][2]uint64{} // of each agent
		if len(all)+len(c.Turns) > maxRequests {
			return nil, &LineError{c.Line, fmt.Sprintf("more than %d requests", maxRequests)}
		}
		for i := range c.Turns {
			t := &c.Turns[i]
			if first[t.Agent] == nil {
				first[t.Agent] = &t.Runs
			}
			all = append(all, placed{*t, start + t.Seconds, number, first[t.Agent]})
		}
	}
	slices.SortStableFunc(all, func(a, b placed) int { return cmp.Compare(a.at, b.at) })
	b, err := newBuilder(name, max(blockTokens, 1), o.PageTokens)
	if err != nil {
		return nil, err
	}
	var names []uint64
	for i := range all {
		t := &all[i]
		names = t.names(names[:0], blockTokens)
		if err := b.add(Access{Seconds: t.at, Input: int32(t.Input), Output: int32(t.Output)}, names); err != nil {
			return nil, err
		}
	}
	return b.w, nil
}

// blocks goes through the ids of runs, one by one.
type blocks struct {
	runs [][2]uint64
	done uint64 // of the first run
}

// next is the next id; ok is false behind the last.
func (b *blocks) next() (id uint64, ok bool) {
	if len(b.runs) == 0 {
		return 0, false
	}
	id = b.runs[0][0] + b.done
	if b.done++; b.done == b.runs[0][1] {
		b.runs, b.done = b.runs[1:], 0
	}
	return id, true
}

// names appends a name of 64 bits for each block to dst, which is empty.
func (t *placed) names(dst []uint64, blockTokens uint32) []uint64 {
	h := fnv.New64a()
	_, _ = io.WriteString(h, t.Model) // never fails
	model := h.Sum64()
	tools := mix(model ^ mix(uint64(t.tool)))
	system := mix(tools ^ mix(uint64(t.system)+1<<32))
	own := mix(model ^ mix(uint64(t.number)+2<<32))
	mine, first := blocks{runs: t.Runs}, blocks{runs: *t.first}
	for end := int(blockTokens); ; end += int(blockTokens) {
		id, ok := mine.next()
		if !ok {
			return dst
		}
		was, same := first.next()
		switch i := uint64(len(dst)); {
		case !same || was != id || end > t.tool+t.system:
			dst = append(dst, mix(own^id))
		case end <= t.tool:
			dst = append(dst, mix(tools^i))
		default:
			dst = append(dst, mix(system^i))
		}
	}
}
