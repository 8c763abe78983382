package server

import (
	"crypto/rand"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/quire-kv/quire/internal/clock"
	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/core"
	"github.com/quire-kv/quire/store/rpc"
)

// sessionID is what a client names its session by: random, and of use to its principal only.
type sessionID [16]byte

// keepAliveEvery is how often an attached stream says that it lives.
const keepAliveEvery = 15 * time.Second

// sessions maps the ids that clients name to the store's sessions.
type sessions struct {
	most int // per principal

	mu    sync.Mutex // guards all below
	byID  map[sessionID]session
	ids   map[core.Session]sessionID
	count map[core.Principal]int
}

type session struct {
	id    core.Session
	by    core.Principal
	since clock.Instant
}

func newSessions(most int) *sessions {
	return &sessions{most: most, byID: map[sessionID]session{}, ids: map[core.Session]sessionID{}, count: map[core.Principal]int{}}
}

// of is the session that a request names; empty is none.
func (t *sessions) of(b []byte, by core.Principal) (core.Session, error) {
	if len(b) == 0 {
		return 0, nil
	}
	id, err := bytes16("session_id", b, false)
	if err != nil {
		return 0, err
	}
	t.mu.Lock()
	s, ok := t.byID[id]
	t.mu.Unlock()
	if !ok || s.by != by {
		return 0, rpc.Errorf(reason.LeaseExpired, "the session is over; attach again")
	}
	return s.id, nil
}

// reserve takes a principal's place for one more session.
func (t *sessions) reserve(by core.Principal) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.count[by] >= t.most {
		return false
	}
	t.count[by]++
	return true
}

func (t *sessions) release(by core.Principal) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.count[by]--; t.count[by] == 0 {
		delete(t.count, by)
	}
}

func (t *sessions) add(s session) (id sessionID) {
	rand.Read(id[:]) // never fails
	t.mu.Lock()
	defer t.mu.Unlock()
	t.byID[id], t.ids[s.id] = s, id
	return id
}

func (t *sessions) remove(id sessionID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.ids, t.byID[id].id)
	delete(t.byID, id)
}

// idOf is a session's public id, nil for none.
func (t *sessions) idOf(s core.Session) []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	if id, ok := t.ids[s]; ok {
		return id[:]
	}
	return nil
}

// since is when a live session began; zero: it is over.
func (t *sessions) since(s core.Session) clock.Instant {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byID[t.ids[s]].since
}

// Attach opens a session that lives as long as the stream. Keep-alives let both ends find a peer that is gone.
func (s pageService) Attach(_ *quirev1.AttachRequest, stream grpc.ServerStreamingServer[quirev1.AttachResponse]) error {
	n := s.node
	who, err := principal(stream.Context())
	if err != nil {
		return err
	}
	by := n.store.Intern(principalName(who))
	if !n.sessions.reserve(by) {
		return rpc.Errorf(reason.Busy, "more than %d sessions of one principal", n.limits.SessionsPerPrincipal)
	}
	defer n.sessions.release(by)
	opened := session{n.store.Attach(by), by, n.clock.Now()}
	defer n.store.Detach(opened.id)
	defer n.instances.forget(opened.id) // after remove: a report that comes later finds the session over
	id := n.sessions.add(opened)
	defer n.sessions.remove(id)
	if err := stream.Send(&quirev1.AttachResponse{SessionId: id[:]}); err != nil {
		return err
	}
	for n.pause(stream.Context(), keepAliveEvery) {
		if err := stream.Send(&quirev1.AttachResponse{}); err != nil {
			return err
		}
	}
	return nil
}
