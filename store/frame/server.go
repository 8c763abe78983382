package frame

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/quire-kv/quire/internal/clock"
)

// ServerOptions of a Server. Zero values are documented defaults.
type ServerOptions struct {
	Boot [16]byte // of the node: told in the welcome
	// Identify is the name of who says hello, from a context like that of its calls to come, or why it is refused. nil:
	// everybody is the same.
	Identify func(ctx context.Context) (name string, err error)
	TLS      *tls.Config // nil: plain

	HelloTimeout    time.Duration // from accept to welcome, TLS included; default 10 s
	MaxConns        int           // at once; default 2,048: an idle one costs a thread
	MaxConnsOf      int           // of one name; default 512
	MaxMessageBytes int           // received; default 32 MiB
	// Hold is how long references may be kept after their call is over; default 30 s. What they name is let go of then,
	// whether or not the client has released it.
	Hold  time.Duration
	Clock clock.Clock // of HelloTimeout and Hold; default clock.System
}

func (o *ServerOptions) fill() {
	if o.Identify == nil {
		o.Identify = func(context.Context) (string, error) { return "", nil }
	}
	if o.Clock == nil {
		o.Clock = clock.System()
	}
	o.HelloTimeout = cmp.Or(o.HelloTimeout, 10*time.Second)
	o.MaxConns = cmp.Or(o.MaxConns, 2048)
	o.MaxConnsOf = cmp.Or(o.MaxConnsOf, 512)
	o.MaxMessageBytes = cmp.Or(o.MaxMessageBytes, 32<<20)
	o.Hold = cmp.Or(o.Hold, 30*time.Second)
}

// Server serves registered services over frames. Safe for concurrent use, save RegisterService, which comes first.
type Server struct {
	o       ServerOptions
	methods [len(methodNames)]*method
	pieces  *sync.Pool

	mu        sync.Mutex // guards all below
	stopping  bool
	listeners []net.Listener
	conns     map[*serverConn]struct{}
	of        map[string]int // connections by name, of those that said hello
	tasks     sync.WaitGroup // one per connection
}

// method is one registered handler: unary or stream.
type method struct {
	impl   any
	unary  grpc.MethodHandler
	stream *grpc.StreamDesc
}

// NewServer makes a server without services.
func NewServer(o ServerOptions) *Server {
	o.fill()
	return &Server{o: o, pieces: newPieces(), conns: map[*serverConn]struct{}{}, of: map[string]int{}}
}

// RegisterService implements grpc.ServiceRegistrar. Methods without a number in docs/formats/frames.md are left out.
func (s *Server) RegisterService(d *grpc.ServiceDesc, impl any) {
	for i := range d.Methods {
		if k, ok := methodNumber("/" + d.ServiceName + "/" + d.Methods[i].MethodName); ok {
			s.methods[k] = &method{impl: impl, unary: d.Methods[i].Handler}
		}
	}
	for i := range d.Streams {
		if k, ok := methodNumber("/" + d.ServiceName + "/" + d.Streams[i].StreamName); ok {
			s.methods[k] = &method{impl: impl, stream: &d.Streams[i]}
		}
	}
}

// Serve accepts on l until Stop, which it answers with nil. It closes l. Several listeners may be served at once.
func (s *Server) Serve(l net.Listener) error {
	defer l.Close()
	s.mu.Lock()
	if s.stopping {
		s.mu.Unlock()
		return nil
	}
	s.listeners = append(s.listeners, l)
	s.mu.Unlock()
	for {
		c, err := l.Accept()
		if err != nil {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.stopping {
				return nil
			}
			s.listeners = slices.DeleteFunc(s.listeners, func(x net.Listener) bool { return x == l })
			return err
		}
		s.admit(c)
	}
}

// admit serves c on a goroutine of its own, or closes it: there are as many as there may be.
func (s *Server) admit(c net.Conn) {
	k := &serverConn{s: s, net: c}
	k.ctx, k.cancel = context.WithCancelCause(context.Background())
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping || len(s.conns) >= s.o.MaxConns {
		c.Close()
		return
	}
	s.conns[k] = struct{}{}
	s.tasks.Go(func() {
		defer s.forget(k)
		k.serve()
	})
}

func (s *Server) forget(k *serverConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, k)
	if k.named {
		if s.of[k.name]--; s.of[k.name] == 0 {
			delete(s.of, k.name)
		}
	}
}

var (
	errTooMany  = status.Error(codes.ResourceExhausted, "this principal has as many connections as it may")
	errStopping = status.Error(codes.Unavailable, "the node is stopping")
)

// name counts k in under the name of who it is.
func (s *Server) name(k *serverConn, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of[name] >= s.o.MaxConnsOf {
		return errTooMany
	}
	s.of[name]++
	k.name, k.named = name, true
	return nil
}

// Stop ends the server: it accepts no more, closes connections without a call at once and the others after their
// call. When ctx ends first, it breaks them under their calls and returns ctx's error. It returns when all handlers
// have returned. Idempotent.
func (s *Server) Stop(ctx context.Context) (err error) {
	s.mu.Lock()
	s.stopping = true
	listeners, conns := s.listeners, slices.Collect(maps.Keys(s.conns))
	s.mu.Unlock()
	for _, l := range listeners {
		l.Close()
	}
	for _, k := range conns {
		k.retire()
	}
	done := make(chan struct{})
	go func() { defer close(done); s.tasks.Wait() }()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		err = errors.New("frame: stop: calls were still running")
	}
	for _, k := range conns {
		k.breakOff(errStopping)
	}
	<-done
	return err
}
