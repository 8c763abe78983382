package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quire-kv/quire/evict"
	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/core"
	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/rpc"
)

// Trials of the protocol and of the bytes. They speak the wire's own words: the client would not do what is tried here.

const (
	shortLease = 50 * time.Millisecond
	longLease  = 30 * time.Second
	afterShort = 4 * shortLease   // so long that a lease of shortLease is over, whatever margin is added
	beside     = 20 * time.Second // for what the client or the server does beside its calls: never waited for once it is done
	look       = 10 * time.Millisecond
)

// rawPublication is one whole page on its way, begun and not yet written.
type rawPublication struct {
	s       *stage
	run     *quirev1.KeyRun
	payload []byte
	header  []byte
	token   *quirev1.FencingToken
}

func (s *stage) begin(ctx context.Context, lease time.Duration) (*rawPublication, error) {
	hashes, err := s.chain(page.VLLMRequest{})
	if err != nil {
		return nil, err
	}
	p := &rawPublication{s: s, payload: make([]byte, s.group.PageBytes())}
	hashes = hashes[:hashBytes]
	fillView(p.payload, hashes, s.full(), int(s.group.CellBytes))
	if p.header, err = s.header(hashes, p.payload); err != nil {
		return nil, err
	}
	p.run = &quirev1.KeyRun{Group: s.group.ID[:], Hashes: hashes}
	r, err := s.a.client.Pages().BeginPublish(ctx, &quirev1.BeginPublishRequest{
		Namespace: namespaceRef(s.a.session), Run: p.run, Lease: durationpb.New(lease),
		Pages: []*quirev1.PublishPage{{Parent: &quirev1.PublishPage_Root{Root: true}, PayloadBytes: uint64(len(p.payload))}},
	})
	if err != nil {
		return nil, fmt.Errorf("begin: %w", err)
	}
	if len(r.GetPages()) != 1 || r.GetPages()[0].GetOutcome() != quirev1.Outcome_OUTCOME_GRANTED {
		return nil, fmt.Errorf("begin: %v instead of a grant", r.GetPages())
	}
	p.token = r.GetToken()
	return p, nil
}

// header is what a writer of the stage's namespace says of a page that is a root.
func (s *stage) header(hash, payload []byte) ([]byte, error) {
	key, err := page.MakeHash(hash)
	if err != nil {
		return nil, err
	}
	sums, err := page.AppendSumsOf(nil, payload, s.full(), s.group.CellBytes)
	if err != nil {
		return nil, err
	}
	h := page.Header{
		Key: page.Key{
			Family: page.Family{Namespace: s.a.session.ID(), Epoch: s.a.session.Epoch(), Group: s.group.ID}, Hash: key,
		},
		Extent: page.ExtentID{Writer: [16]byte{1}, Seq: s.next}, Tokens: s.group.PageTokens, View: s.full(), Heads: s.group.Heads,
		Layers: s.group.Layers, CellBytes: s.group.CellBytes, Components: s.group.Components, Grade: s.group.Grade,
		PackingID: s.group.PackingID, PayloadBytes: uint64(len(payload)), CreatedUnix: uint64(time.Now().Unix()),
		Provenance: s.a.session.Provenance(),
	}
	h.SetSums(sums)
	return h.AppendEncode(nil)
}

const rawChunkBytes = 64 << 10

// write sends the first n bytes.
func (p *rawPublication) write(ctx context.Context, n int) error {
	up, err := p.s.a.client.Pages().WritePages(ctx)
	if err != nil {
		return fmt.Errorf("write: %w", err)
	}
	for at := 0; at < n; at += rawChunkBytes {
		m := &quirev1.WritePagesRequest{Offset: uint64(at), Chunk: p.payload[at:min(at+rawChunkBytes, n)]}
		if at == 0 {
			m.Token, m.Namespace = p.token, namespaceRef(p.s.a.session)
		}
		if err := up.Send(m); err != nil {
			break // CloseAndRecv tells why
		}
	}
	if _, err = up.CloseAndRecv(); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}

func (p *rawPublication) commit(ctx context.Context) seen {
	r, err := p.s.a.client.Pages().CommitPublish(ctx, &quirev1.CommitPublishRequest{
		Token: p.token, Namespace: namespaceRef(p.s.a.session), Pages: []*quirev1.CommitPage{{Headers: [][]byte{p.header}}},
	})
	if err != nil {
		return refused(err)
	}
	return seenOfStatus(r.GetPages())
}

// seenOfStatus is what one page was answered on the wire.
func seenOfStatus(pages []*quirev1.PageStatus) seen {
	if len(pages) != 1 {
		return seen{answer: fmt.Sprintf("%d answers for one page", len(pages))}
	}
	why := rpc.FromProto(pages[0].GetReason())
	switch pages[0].GetOutcome() {
	case quirev1.Outcome_OUTCOME_MISS:
		return seen{answer: answerMiss, why: why}
	case quirev1.Outcome_OUTCOME_REFUSED:
		return seen{answer: answerRefused, why: why}
	}
	return seen{answer: answerHit, why: why}
}

// invisible adds to what was seen of a failed commit that the page is not there.
func (p *rawPublication) invisible(ctx context.Context, got seen) (seen, error) {
	x, err := p.s.a.session.Exists(ctx, p.s.run(p.run.Hashes), 0)
	if err != nil {
		return seen{}, err
	}
	got.detail = "nothing of it is visible"
	if x.Leading > 0 {
		got.answer, got.detail = answerHit, "the page is visible all the same"
	}
	return got, nil
}

func truncatedUpload(ctx context.Context, s *stage) (seen, error) {
	p, err := s.begin(ctx, longLease)
	if err != nil {
		return seen{}, err
	}
	if err := p.write(ctx, len(p.payload)/2); err != nil {
		return seen{}, err
	}
	return p.invisible(ctx, p.commit(ctx))
}

func staleToken(ctx context.Context, s *stage) (seen, error) {
	p, err := s.begin(ctx, shortLease)
	if err != nil {
		return seen{}, err
	}
	if err := p.write(ctx, len(p.payload)); err != nil && !errors.Is(rpc.FromStatus(err), reason.StaleToken) {
		return seen{}, err
	}
	if err := wait(ctx, afterShort); err != nil {
		return seen{}, err
	}
	return p.invisible(ctx, p.commit(ctx))
}

func expiredLease(ctx context.Context, s *stage) (seen, error) {
	run, pages := &quirev1.KeyRun{Group: s.group.ID[:], Hashes: s.hashes[:hashBytes]}, s.a.client.Pages()
	x, err := pages.BatchExists(ctx, &quirev1.BatchExistsRequest{
		Namespace: namespaceRef(s.a.session), Runs: []*quirev1.KeyRun{run}, Lease: durationpb.New(shortLease),
	})
	if err != nil {
		return seen{}, fmt.Errorf("look up with lease: %w", err)
	}
	if len(x.GetLease().GetLeaseId()) == 0 {
		return seen{}, errors.New("look up with lease: no lease was granted")
	}
	if err := wait(ctx, afterShort); err != nil {
		return seen{}, err
	}
	stream, err := pages.Fetch(ctx, &quirev1.FetchRequest{
		Namespace: namespaceRef(s.a.session), Run: run, LeaseId: x.GetLease().GetLeaseId(),
	})
	if err != nil {
		return refused(err), nil
	}
	return lastOf(stream.Recv)
}

// lastOf reads a fetch of one page to its end and answers how the page ended.
func lastOf(recv func() (*quirev1.FetchResponse, error)) (seen, error) {
	got := seen{answer: "no answer"}
	for {
		m, err := recv()
		switch {
		case errors.Is(err, io.EOF):
			return got, nil
		case err != nil:
			return refused(err), nil
		case m.GetTrailer() != nil:
			got = seenOfStatus([]*quirev1.PageStatus{m.GetTrailer()})
		}
	}
}

// flippedBit damages a page where the server keeps it, behind everybody's back.
func flippedBit(ctx context.Context, s *stage) (seen, error) {
	hashes, err := s.chain(page.VLLMRequest{})
	if err != nil {
		return seen{}, err
	}
	hashes = hashes[:hashBytes]
	if err := s.publishAndCheck(ctx, s.a.session, page.Scope{}, hashes); err != nil {
		return seen{}, err
	}
	if err := s.writtenBehind(ctx, hashes); err != nil {
		return seen{}, err
	}
	if err := s.flip(ctx, hashes); err != nil {
		return seen{}, err
	}
	got, err := s.read(ctx, s.b.session, s.run(hashes))
	if err != nil {
		return seen{}, err
	}
	there, again := true, seen{}
	if err := eventually(ctx, func() (bool, error) { // the client, which found the damage, tells the server of it
		x, err := s.b.session.Exists(ctx, s.run(hashes), 0)
		if there = err == nil && x.Leading > 0; !there || !s.keep {
			return !there, err
		}
		again, err = s.read(ctx, s.b.session, s.run(hashes)) // it was written to disk meanwhile
		return again.answer == answerHit, err
	}); err != nil {
		return seen{}, err
	}
	switch {
	case there && again.answer == answerHit:
		got.detail = "its copy on disk is served from then on"
		return got, nil
	case there && s.keep:
		return seen{answer: "its copy on disk: " + again.answer, why: again.why}, nil
	case there:
		return seen{answer: answerHit, detail: "the page is still said to be there"}, nil
	}
	if err := s.publishAndCheck(ctx, s.b.session, page.Scope{}, hashes); err != nil {
		return seen{}, fmt.Errorf("publish it again: %w", err)
	}
	got.detail = "absent from then on; published again, it is served"
	return got, nil
}

// writtenBehind waits for the copy on disk, if there is to be one: on its way there the page is verified, and damage
// would be found before anybody asks.
func (s *stage) writtenBehind(ctx context.Context, hash []byte) error {
	if !s.keep {
		return nil
	}
	return eventually(ctx, func() (bool, error) {
		parts, err := s.stored(ctx, hash)
		return slices.ContainsFunc(parts, func(p core.Part) bool { return p.Place.Tier == evict.Disk }), err
	})
}

// stored is where the copies of a page of engine A's namespace are.
func (s *stage) stored(ctx context.Context, hash []byte) ([]core.Part, error) {
	h, err := page.MakeHash(hash)
	if err != nil {
		return nil, err
	}
	session := s.a.session
	key := page.Key{Family: page.Family{Namespace: session.ID(), Epoch: session.Epoch(), Group: s.group.ID}, Hash: h}
	return s.daemon.Store().Explain(ctx, &key).Parts, nil
}

// flip changes one bit in the middle of a stored page.
func (s *stage) flip(ctx context.Context, hash []byte) error {
	parts, err := s.stored(ctx, hash)
	if err != nil {
		return err
	}
	for _, p := range parts {
		if p.Place.Tier != evict.Host {
			continue
		}
		region, ok := s.daemon.Host().Lookup(p.Place.Handle, p.Place.Offset)
		if !ok {
			return errors.New("the page to damage has no memory")
		}
		region.Memory[len(region.Memory)-len(region.Memory)/3] ^= 1 << 4
		return nil
	}
	return errors.New("the page to damage is not in memory")
}

// eventually looks until done says so, or what has its time beside the calls did not come about.
func eventually(ctx context.Context, done func() (bool, error)) error {
	for end := time.Now().Add(beside); time.Now().Before(end); {
		if ok, err := done(); ok || err != nil {
			return err
		}
		if err := wait(ctx, look); err != nil {
			return err
		}
	}
	return nil
}

func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
