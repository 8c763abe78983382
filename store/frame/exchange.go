package frame

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/quire-kv/quire/store/rpc"
)

// exchange is one call on a connection, as both ends see it: what they send, what arrives, and what is referred to.
// One goroutine at a time.
type exchange struct {
	c      *conn
	method uint16
	call   uint32

	before []byte // frames that go out with what comes next
	out    batch
	in     arriving

	behind bool // the peer has sent the next request: the answer may wait for the answer to that

	lent  lent   // of references sent
	taken uint32 // references received and done with
	told  uint32 // of them, the peer knows
}

func (x *exchange) header(k kind) header { return header{kind: k, method: x.method, call: x.call} }

// laterBytes is the most of an answer that waits for the answer to what its peer has sent already: a publication that comes
// at once is answered with one write.
const laterBytes = 4 << 10

// send sends m as a message of the stream. Chunks are gathered.
func (x *exchange) send(m any) error {
	if c, ok := m.(*rpc.Chunk); ok {
		return x.sendChunk(c)
	}
	pm, ok := m.(proto.Message)
	if !ok {
		return errNoMessage
	}
	return x.sendLast(x.header(kindMessage), pm)
}

func (x *exchange) sendChunk(m *rpc.Chunk) error {
	if len(m.Body) > maxDataBytes-windowBytes || len(m.Head) > x.c.gives.body-windowHeadBytes {
		return fmt.Errorf("%w: a chunk of %d bytes with a head of %d", ErrTooLarge, len(m.Body), len(m.Head))
	}
	x.out.add(m)
	if m.Ref != nil && m.Pin != nil {
		m.Pin.Lend()
		x.lent.pins = append(x.lent.pins, m.Pin)
	}
	if x.out.full() || m.Pin == nil && m.Ref == nil && len(m.Body) > 0 { // without a pin it is the caller's again when this returns
		return x.flush()
	}
	return nil
}

// sendLast sends what was gathered and then one frame.
func (x *exchange) sendLast(h header, m proto.Message) (err error) {
	if x.out.empty() {
		if x.before, err = x.c.appendFrame(x.before, h, m); err != nil {
			return err
		}
		if x.behind && len(x.before) <= laterBytes {
			x.c.putOff(x.before)
			x.before = x.before[:0]
			return nil
		}
		return x.flush()
	}
	after, err := x.c.appendFrame(nil, h, m)
	if err != nil {
		return err
	}
	return x.write(after)
}

// flush sends what was gathered.
func (x *exchange) flush() error {
	if len(x.before) == 0 && x.out.empty() {
		return nil
	}
	return x.write(nil)
}

func (x *exchange) write(after []byte) error {
	err := x.out.write(x.c, x.header(kindMessage), x.before, after)
	x.before = x.before[:0]
	return err
}

// receive takes the message in a frame that has just been read, or the first chunk of its batch.
func (x *exchange) receive(h *header, m any) error {
	body, err := x.c.readBody(int(h.body))
	if err != nil {
		return err
	}
	if h.flags&flagChunks != 0 {
		if err := x.in.begin(body, int(h.data)); err != nil {
			return err
		}
		return x.nextChunk(m)
	}
	return take(body, m)
}

// take reads a whole message that lies in b.
func take(b []byte, m any) error {
	r, ok := m.(*rpc.Received)
	if !ok {
		return unmarshal(b, m)
	}
	return r.Read(b)
}

func (x *exchange) nextChunk(m any) error {
	shared, err := x.in.deliver(x.c, m)
	if shared {
		x.taken++
	}
	return err
}

// end forgets what was gathered and not sent, and gives back all that was lent.
func (x *exchange) end() {
	x.out.drop()
	giveBack(x.lent.rest())
	x.before, x.in, x.lent, x.taken, x.told = x.before[:0], arriving{}, lent{pins: x.lent.pins[:0]}, 0, 0
	x.behind = false
}

// lent are the pins of what a call has referred its peer to, in order.
type lent struct {
	pins     []*rpc.Pin
	released uint32 // of them, by the peer
}

func (l *lent) all() bool { return int(l.released) == len(l.pins) }

// upTo are the pins that come back when the peer has released count by now.
func (l *lent) upTo(count uint32) ([]*rpc.Pin, error) {
	if count < l.released || int64(count) > int64(len(l.pins)) {
		return nil, fmt.Errorf("%w: %d references released of %d, after %d", ErrProtocol, count, len(l.pins), l.released)
	}
	back := l.pins[l.released:count]
	l.released = count
	return back, nil
}

func (l *lent) rest() []*rpc.Pin {
	back, _ := l.upTo(uint32(len(l.pins)))
	return back
}

func giveBack(pins []*rpc.Pin) {
	for _, p := range pins {
		p.Back()
	}
	clear(pins)
}
