package demo

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/quire-kv/quire/namespace"
	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/client"
	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/rpc"
)

// Refusal is one thing that must not work, and what was answered when it was tried.
type Refusal struct {
	Name           string `json:"name"` // stable
	Tried          string `json:"tried"`
	Answer         string `json:"answer"` // miss, refused, or hit when it went wrong
	Reason         string `json:"reason"`
	Detail         string `json:"detail,omitempty"`
	Expected       string `json:"expected_answer"`
	ExpectedReason string `json:"expected_reason"`
	AsExpected     bool   `json:"as_expected"`
}

// The answers.
const (
	answerHit     = "hit"
	answerMiss    = "miss"
	answerRefused = "refused"
)

// trial is one refusal to provoke. try answers an error only when the trial itself could not be made: what the server
// answers, whatever it is, is a seen.
type trial struct {
	name, tried string
	answer      string
	why         reason.Reason
	try         func(ctx context.Context, s *stage) (seen, error)
}

// seen is what came back.
type seen struct {
	answer string
	why    reason.Reason
	detail string
}

// refusals makes every trial in turn on a stage of its own chain.
func (w *world) refusals(ctx context.Context) ([]Refusal, error) {
	s, err := newStage(ctx, w)
	if err != nil {
		return nil, err
	}
	defer s.close()
	var out []Refusal
	for _, t := range trials() {
		got, err := t.try(ctx, s)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", t.name, err)
		}
		out = append(out, Refusal{
			Name: t.name, Tried: t.tried, Answer: got.answer, Reason: got.why.String(), Detail: got.detail,
			Expected: t.answer, ExpectedReason: t.why.String(), AsExpected: got.answer == t.answer && got.why == t.why,
		})
	}
	return out, nil
}

// trials in the order in which they are shown: identity, people, protocol, bytes.
func trials() []trial {
	return []trial{
		{"other_dtype", "the same prompt by an engine with float16 KV", answerMiss, reason.Absent, otherSpec(func(s *namespace.Spec) error {
			s.Groups[0].Components = []namespace.Component{component("k", "float16"), component("v", "float16")}
			return nil
		})},
		{"other_weights", "the same model name with other weights", answerMiss, reason.Absent, otherSpec(func(s *namespace.Spec) error {
			s.Model.Weights = digest("fine-tuned weights")
			return nil
		})},
		{"other_rope", "the same weights with another RoPE scaling", answerMiss, reason.Absent, otherSpec(func(s *namespace.Spec) error {
			s.Rope.Table = digest("rope theta 500000, yarn factor 4")
			return nil
		})},
		{"other_adapter", "an adapter of the same name with other content", answerMiss, reason.Absent, otherAdapter},
		{"other_tenant", "the same spec and prompt by another tenant", answerMiss, reason.Absent, otherTenant},
		{"other_tenant_by_id", "another tenant that knows the namespace's id", answerMiss, reason.Absent, otherTenantByID},
		{"other_hash_seed", "an engine that differs in its hash seed alone", answerRefused, reason.HashContractFork, otherSeed},
		{"revoked_waiver", "a page that came in by a waiver, after it was revoked", answerMiss, reason.Provenance, revokedWaiver},
		{"truncated_upload", "a commit of which half the bytes arrived", answerRefused, reason.Truncated, truncatedUpload},
		{"stale_token", "a commit by a writer whose publication lease is over", answerRefused, reason.StaleToken, staleToken},
		{"expired_lease", "a fetch under a read lease that is over", answerRefused, reason.LeaseExpired, expiredLease},
		{"flipped_bit", "a page of which one bit was flipped in the server's memory", answerMiss, reason.Corrupt, flippedBit},
	}
}

// seenOf turns results and the error of a call into what was seen of its first page.
func seenOf(results []client.PageResult, err error) seen {
	if len(results) > 0 && err == nil {
		switch r := results[0]; r.Outcome {
		case client.Miss:
			return seen{answer: answerMiss, why: r.Reason}
		case client.Refused:
			return seen{answer: answerRefused, why: r.Reason}
		default:
			return seen{answer: answerHit}
		}
	}
	return refused(err)
}

// refused is the reason of an error, with what differs; no error at all is a hit.
func refused(err error) seen {
	if err == nil {
		return seen{answer: answerHit}
	}
	var e *rpc.Error
	if err = rpc.FromStatus(err); !errors.As(err, &e) {
		return seen{answer: err.Error()}
	}
	s := seen{answer: answerRefused, why: e.Reason, detail: e.Text}
	if len(e.Differences) > 0 {
		s.detail = differences(e.Differences)
	}
	return s
}

const maxShown = 3 // differences in one line

func differences(all []namespace.Difference) string {
	var parts []string
	for i, d := range all {
		if i == maxShown {
			parts = append(parts, fmt.Sprintf("and %d more", len(all)-i))
			break
		}
		parts = append(parts, fmt.Sprintf("%s: %s, not %s (%v)", d.Path, short(d.B), short(d.A), d.Class))
	}
	return strings.Join(parts, "; ")
}

// short keeps digests readable.
func short(v string) string {
	if d, ok := strings.CutPrefix(v, "sha256:"); ok && len(d) > 8 {
		return "sha256:" + d[:8]
	}
	if v == "" {
		return "nothing"
	}
	return v
}

// stage is where the trials happen: one chain of pages, published by engine A and known to be served.
type stage struct {
	*world
	hashes   []byte
	next     uint64 // block ids of further chains, outside of every trace
	hasher   *hasher
	sessions []*client.Session // to be closed
}

const (
	stagePages = 2
	stageTries = 16
)

func newStage(ctx context.Context, w *world) (*stage, error) {
	h, err := newHasher()
	if err != nil {
		return nil, err
	}
	s := &stage{world: w, hasher: h, next: 1<<60 | rand.Uint64()>>8} // none of an earlier demo's
	if s.hashes, err = s.chain(page.VLLMRequest{}); err != nil {
		return nil, err
	}
	return s, s.publishAndCheck(ctx, w.a.session, page.Scope{}, s.hashes)
}

func (s *stage) close() {
	for _, x := range s.sessions {
		x.Close()
	}
}

// chain is the hashes of a prompt that nobody had before.
func (s *stage) chain(r page.VLLMRequest) ([]byte, error) {
	s.next += stagePages
	hashes, err := s.hasher.run(r, []uint64{s.next, s.next + 1})
	return append([]byte(nil), hashes...), err
}

// publishAndCheck stores whole pages by session and reads them back, so that a miss that follows means something.
func (s *stage) publishAndCheck(ctx context.Context, by *client.Session, scope page.Scope, hashes []byte) error {
	run := client.Run{Group: s.group.ID, Scope: scope, Hashes: hashes}
	items := make([]client.Item, len(hashes)/hashBytes)
	for i := range items {
		items[i].Bytes = make([]byte, s.group.PageBytes())
		fillView(items[i].Bytes, hashes[i*hashBytes:], s.full(), int(s.group.CellBytes))
	}
	items[0].Root = true
	publish := func() error {
		results, err := by.Publish(ctx, run, page.View{}, nil, items, client.PublishOptions{})
		if good := client.GoodPrefix(results); err == nil && good < len(items) {
			err = results[good].Reason
		}
		return err
	}
	err := publish()
	for range stageTries { // a full store that drew none but better pages to put these in the place of draws others
		if !errors.Is(err, reason.NotWorth) {
			break
		}
		err = publish()
	}
	if err != nil {
		return fmt.Errorf("publish what shall be refused later: %w", err)
	}
	got, err := s.read(ctx, by, run)
	if err != nil {
		return err
	}
	if got.answer != answerHit {
		return fmt.Errorf("read what shall be refused later: %w", got.why)
	}
	return nil
}

// read fetches whole pages; a hit is one whose bytes are right.
func (s *stage) read(ctx context.Context, by *client.Session, run client.Run) (seen, error) {
	n := len(run.Hashes) / hashBytes
	dst := make([][]byte, n)
	for i := range dst {
		dst[i] = make([]byte, s.group.PageBytes())
	}
	results, err := by.FetchInto(ctx, run, page.View{}, nil, dst, nil)
	got := seenOf(results, err)
	if got.answer != answerHit {
		return got, nil
	}
	for i := range dst {
		if wrong := wrongBytes(dst[i], run.Hashes[i*hashBytes:], s.full(), int(s.group.CellBytes)); wrong > 0 {
			return got, fmt.Errorf("%d wrong bytes were served", wrong)
		}
	}
	return got, nil
}

// namespaceRef names a session's namespace in raw calls.
func namespaceRef(s *client.Session) *quirev1.NamespaceRef {
	id, d := s.ID(), namespace.DigestOf(s.Provenance())
	return &quirev1.NamespaceRef{Id: id[:], Epoch: uint64(s.Epoch()), Provenance: d[:]}
}
