package shm

import (
	"sync"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/credentials"

	"github.com/quire-kv/quire/store/host"
	"github.com/quire-kv/quire/store/rpc"
	"github.com/quire-kv/quire/store/shm/socket"
)

// Memory is what a node shares: *host.Driver.
type Memory interface {
	// Locate finds memory of a region that stays allocated.
	Locate(mem []byte) (host.Shared, bool)
	// Export answers descriptors of a slab in which a region stays allocated. They are the caller's.
	Export(handle uint32) (host.Slab, error)
}

// Peer is who is at the other end, as the kernel saw it when it connected: credentials.AuthInfo of its calls.
type Peer struct {
	credentials.CommonAuthInfo
	UID, GID uint32
	PID      int32
}

// AuthType is "unix".
func (Peer) AuthType() string { return "unix" }

// maxSent bounds what a connection remembers to have handed out. Beyond it, it starts over: a client closes
// descriptors of what it has.
const maxSent = 16 << 10

// conn is one client's connection: a net.Conn that is rpc.Sharing.
type conn struct {
	*socket.Conn
	peer   Peer
	memory Memory
	staged staging

	mu   sync.Mutex          // guards below
	sent map[uint64]struct{} // numbers of slabs that this client has
}

var _ rpc.Sharing = (*conn)(nil)

func newConn(c *socket.Conn, who unix.Ucred, m Memory, b *stagingBudget) *conn {
	k := &conn{Conn: c, memory: m, sent: map[uint64]struct{}{}}
	k.peer = Peer{UID: who.Uid, GID: who.Gid, PID: who.Pid}
	k.peer.SecurityLevel = credentials.PrivacyAndIntegrity // bytes do not leave the host
	k.staged.budget, k.staged.owner = b, who.Uid
	return k
}

// AuthInfo is the Peer.
func (k *conn) AuthInfo() credentials.AuthInfo { return k.peer }

// Refer names memory of a region that the caller has pinned; the slab's descriptors go before the name. False: the
// slab is mixed, or cannot be handed out now.
func (k *conn) Refer(body []byte) (rpc.Ref, bool) {
	at, ok := k.memory.Locate(body)
	if !ok || !k.hand(&at) {
		return rpc.Ref{}, false
	}
	return rpc.Ref{
		Slab: at.Number, Offset: uint64(at.Offset), Bytes: uint64(len(body)),
		SlotGeneration: at.SlotGeneration, SlabGeneration: at.SlabGeneration,
	}, true
}

// hand sends the descriptors of a slab, once.
func (k *conn) hand(at *host.Shared) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, ok := k.sent[at.Number]; ok {
		return true
	}
	s, err := k.memory.Export(at.Handle)
	if err != nil {
		return false
	}
	if len(k.sent) >= maxSent {
		clear(k.sent)
	}
	k.sent[at.Number] = struct{}{}
	k.Send(s.Data, s.Generations)
	return true
}

// Resolve is memory that the client staged.
func (k *conn) Resolve(r *rpc.Ref) ([]byte, func(), error) {
	k.staged.take(k.Take())
	return k.staged.resolve(r)
}

// Valid is always true: what a client staged is its own, and what it says is checked where it is copied to.
func (k *conn) Valid(*rpc.Ref) bool { return true }

// Close ends the connection, and what was staged when nothing reads it any more. Idempotent.
func (k *conn) Close() error {
	err := k.Conn.Close()
	k.staged.close()
	return err
}
