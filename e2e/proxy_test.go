package e2e

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// proxy forwards TCP to a server. While cut is set, what the server answers is thrown away and the connection with it:
// the request arrived, its answer does not.
type proxy struct {
	listener net.Listener
	target   string
	cut      atomic.Bool
	wg       sync.WaitGroup

	mu    sync.Mutex // guards conns
	conns []net.Conn
}

func startProxy(t *testing.T, target string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: l, target: target}
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		l.Close()
		p.mu.Lock()
		for _, c := range p.conns {
			c.Close()
		}
		p.mu.Unlock()
		p.wg.Wait()
	})
	return p
}

func (p *proxy) address() string { return p.listener.Addr().String() }

func (p *proxy) accept() {
	for {
		from, err := p.listener.Accept()
		if err != nil {
			return
		}
		to, err := net.Dial("tcp", p.target)
		if err != nil {
			from.Close()
			continue
		}
		p.mu.Lock()
		p.conns = append(p.conns, from, to)
		p.mu.Unlock()
		p.wg.Go(func() { _, _ = io.Copy(to, from); to.Close() })
		p.wg.Go(func() { p.answers(from, to); from.Close(); to.Close() })
	}
}

func (p *proxy) answers(from, to net.Conn) {
	buf := make([]byte, 64<<10)
	for {
		n, err := to.Read(buf)
		if err != nil || p.cut.Load() {
			return
		}
		if _, err := from.Write(buf[:n]); err != nil {
			return
		}
	}
}
