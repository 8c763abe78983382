package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quire-kv/quire/namespace"
	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/rpc"
)

// errInvalid ends a session whose model is no longer what it was opened for.
var errInvalid = fmt.Errorf("client: session invalidated: %w", reason.StaleEpoch)

const (
	closeGrace    = 500 * time.Millisecond // for reports and aborts that are on their way when a session ends
	maxBackground = 64                     // of them at once; beyond that they are dropped: leases end by time anyway
)

// Geometry is the shape of a group's pages.
type Geometry struct {
	Heads, Layers uint16
	CellBytes     uint32 // of one (kv head, layer)
	Tokens        uint32 // of a page
	Grade         page.Grade
}

// Full is the view of the whole page.
func (g Geometry) Full() page.View { return page.View{H1: g.Heads, L1: g.Layers} }

// Session is one epoch of one namespace, bound to what the model is now. Leases and publications that it takes end
// with it. Safe for concurrent use.
//
//	open ──Close──────> closed        calls answer ErrClosed
//	  \───Invalidate──> invalidated   calls answer, without asking the server: miss or refused, StaleEpoch
type Session struct {
	c         *Client
	record    *quirev1.Namespace
	id        page.NamespaceID
	epoch     page.Epoch
	ref       *quirev1.NamespaceRef
	canonical []byte
	hashBytes int
	groups    map[page.GroupID]Geometry
	attached  atomic.Pointer[[]byte] // id of the live attach stream; nil between two

	ctx    context.Context // ends with the session
	cancel context.CancelCauseFunc
	bgCtx  context.Context // of reports and aborts: outlives ctx by closeGrace at most
	bgEnd  context.CancelFunc
	slots  chan struct{} // of background work

	mu    sync.Mutex // guards below
	ended error
	calls sync.WaitGroup
	bg    sync.WaitGroup
	down  chan struct{} // closed when everything of the session has ended
}

// Open binds a session to what the model is now: create-or-get of the namespace by spec. Errors are *rpc.Error: a
// refusal has its reason, the path of a wrong field, and what differs from the nearest sibling.
func (c *Client) Open(ctx context.Context, spec *namespace.Spec) (*Session, error) {
	text, err := json.Marshal(spec)
	if err != nil {
		return nil, fmt.Errorf("open: encode spec: %w", err)
	}
	r, err := retried(ctx, c, func(ctx context.Context) (*quirev1.OpenResponse, error) {
		return c.Namespaces().Open(ctx, &quirev1.OpenRequest{Spec: string(text)})
	})
	if err != nil {
		return nil, fmt.Errorf("open namespace: %w", err)
	}
	return c.attach(ctx, r.GetNamespace(), r.GetProvenance(), r.GetCanonicalProvenance())
}

// OpenID binds a session to a namespace that another process opened: only the process that hashes opens by spec.
// canonical is that session's Provenance; nil for a session that only reads and states none.
func (c *Client) OpenID(ctx context.Context, id page.NamespaceID, canonical []byte) (*Session, error) {
	r, err := retried(ctx, c, func(ctx context.Context) (*quirev1.GetResponse, error) {
		return c.Namespaces().Get(ctx, &quirev1.GetRequest{Id: id[:]})
	})
	if err != nil {
		return nil, fmt.Errorf("open namespace %v: %w", id, err)
	}
	var prov []byte
	if canonical != nil {
		d := namespace.DigestOf(canonical)
		prov = d[:]
	}
	return c.attach(ctx, r.GetNamespace(), prov, canonical)
}

// attach makes a session of a namespace's record and waits for its stream.
func (c *Client) attach(ctx context.Context, n *quirev1.Namespace, prov, canonical []byte) (*Session, error) {
	s := &Session{c: c, record: n, canonical: canonical, slots: make(chan struct{}, maxBackground), down: make(chan struct{})}
	if err := s.learn(n, prov); err != nil {
		return nil, fmt.Errorf("open namespace: %w", err)
	}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	s.bgCtx, s.bgEnd = context.WithCancel(context.Background())
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil, ErrClosed
	}
	c.sessions[s] = struct{}{}
	first := make(chan error, 1)
	s.bg.Go(func() { s.stayAttached(first) })
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, c.opt.CallTimeout)
	defer cancel()
	var err error
	select {
	case err = <-first:
	case <-ctx.Done():
		err = rpc.Refused(ctx.Err())
	}
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("attach session: %w", err)
	}
	return s, nil
}

// learn takes over what the record says of identity and shapes.
func (s *Session) learn(n *quirev1.Namespace, prov []byte) error {
	if len(n.GetId()) != len(s.id) || n.GetEpoch() == 0 || n.GetHashBytes() < page.MinHashBytes || n.GetHashBytes() > page.MaxHashBytes {
		return fmt.Errorf("namespace record with id of %d bytes, epoch %d, hashes of %d: %w", len(n.GetId()), n.GetEpoch(), n.GetHashBytes(), page.ErrInvalid)
	}
	s.id, s.epoch, s.hashBytes = page.NamespaceID(n.GetId()), page.Epoch(n.GetEpoch()), int(n.GetHashBytes())
	s.ref = &quirev1.NamespaceRef{Id: n.GetId(), Epoch: n.GetEpoch(), Provenance: prov}
	s.groups = make(map[page.GroupID]Geometry, len(n.GetGroups()))
	for _, g := range n.GetGroups() {
		geo, err := geometryOf(g)
		if err != nil {
			return err
		}
		s.groups[page.GroupID(g.GetId())] = geo
	}
	return nil
}

func geometryOf(g *quirev1.Group) (Geometry, error) {
	geo := Geometry{
		Heads: uint16(g.GetKvHeads()), Layers: uint16(g.GetLayers()), CellBytes: uint32(g.GetCellBytes()),
		Tokens: g.GetPageTokens(), Grade: gradeOf(g.GetGrade()),
	}
	if len(g.GetId()) != 32 || uint32(geo.Heads) != g.GetKvHeads() || uint32(geo.Layers) != g.GetLayers() ||
		uint64(geo.CellBytes) != g.GetCellBytes() || geo.CellBytes == 0 || geo.Full().Empty() || geo.Grade == page.GradeInvalid {
		return geo, fmt.Errorf("group %x of %d heads x %d layers x %d bytes, %q: %w",
			g.GetId(), g.GetKvHeads(), g.GetLayers(), g.GetCellBytes(), g.GetGrade(), page.ErrUnsupported)
	}
	return geo, nil
}

func gradeOf(name string) page.Grade {
	for _, g := range []page.Grade{page.Elements, page.Cell, page.Whole} {
		if g.String() == name {
			return g
		}
	}
	return page.GradeInvalid
}

// ID is the namespace.
func (s *Session) ID() page.NamespaceID { return s.id }

// Epoch is the namespace's life that the session is bound to.
func (s *Session) Epoch() page.Epoch { return s.epoch }

// Provenance is the canonical provenance: what workers pass to OpenID. Read-only.
func (s *Session) Provenance() []byte { return s.canonical }

// Namespace is the record as of Open. Read-only.
func (s *Session) Namespace() *quirev1.Namespace { return s.record }

// Geometry is the shape of a group's pages; ok is false for a group that the namespace does not have.
func (s *Session) Geometry(g page.GroupID) (geo Geometry, ok bool) {
	geo, ok = s.groups[g]
	return geo, ok
}

// Invalidate says that the model is no longer what the session was opened for (weights updated, adapter replaced,
// scales recalibrated). It cancels what is in flight and returns when nothing of it can commit any more.
func (s *Session) Invalidate() { s.end(errInvalid) }

// Close ends the session with its leases and publications. Idempotent and prompt.
func (s *Session) Close() error {
	s.end(ErrClosed)
	return nil
}

func (s *Session) end(why error) {
	s.mu.Lock()
	first := s.ended == nil
	if first {
		s.ended = why
	}
	s.mu.Unlock()
	if !first {
		<-s.down
		return
	}
	s.cancel(why)
	s.calls.Wait()
	stop := s.c.opt.Clock.AfterFunc(closeGrace, s.bgEnd)
	s.bg.Wait()
	stop()
	s.bgEnd()
	s.c.mu.Lock()
	delete(s.c.sessions, s)
	s.c.mu.Unlock()
	close(s.down)
}

// enter admits a call: its context ends with the session too. leave must be called.
func (s *Session) enter(ctx context.Context) (_ context.Context, leave func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended != nil {
		return nil, nil, s.ended
	}
	s.calls.Add(1)
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.ctx, func() { cancel(context.Cause(s.ctx)) })
	return ctx, func() { stop(); cancel(nil); s.calls.Done() }, nil
}

// why makes the end of the session the error of a call that it cancelled.
func (s *Session) why(err error) error {
	if cause := context.Cause(s.ctx); err != nil && cause != nil {
		return cause
	}
	return err
}

// invalidated says whether err means that the session answers for itself.
func invalidated(err error) bool { return errors.Is(err, errInvalid) }

// background runs f beside the caller, within CallTimeout, if there is room, and says whether it does; the session waits
// for it when it ends.
func (s *Session) background(f func(ctx context.Context)) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bgCtx.Err() != nil {
		return false
	}
	select {
	case s.slots <- struct{}{}:
	default:
		return false
	}
	s.bg.Go(func() {
		defer func() { <-s.slots }()
		ctx, cancel := context.WithTimeout(s.bgCtx, s.c.opt.CallTimeout)
		defer cancel()
		f(ctx)
	})
	return true
}

// sessionID is sent with what shall end with the session.
func (s *Session) sessionID() []byte {
	if id := s.attached.Load(); id != nil {
		return *id
	}
	return nil
}
