package frame

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestHello(t *testing.T) {
	for _, h := range []hello{{version: 1}, {version: 1, token: "qk_x", instance: "engine-0"}, {version: 65535, instance: "é"}} {
		b, err := h.append(nil)
		if err != nil {
			t.Fatal(err)
		}
		var got hello
		if err := got.decode(b); err != nil || got != h {
			t.Errorf("%+v %v", got, err)
		}
		for i := range b {
			if err := new(hello).decode(b[:i]); !errors.Is(err, ErrProtocol) {
				t.Errorf("%d bytes: %v", i, err)
			}
		}
	}
	if _, err := (&hello{token: string(make([]byte, helloBodyBytes))}).append(nil); !errors.Is(err, ErrTooLarge) {
		t.Error(err)
	}
	w := Welcome{Version: Version, BodyBytes: 1, DataBytes: 2, Boot: [16]byte{3}}
	var got Welcome
	if err := got.decode(append(w.append(nil), "later"...)); err != nil || got != w {
		t.Errorf("%+v %v", got, err)
	}
	w.Version = 2
	if err := got.decode(w.append(nil)); !errors.Is(err, ErrProtocol) {
		t.Error(err)
	}
}

// TestStrangers: who says nothing, or the wrong thing, is cut off, having had no more than a hello's memory.
func TestStrangers(t *testing.T) {
	w := newWorld(t, how{server: ServerOptions{HelloTimeout: 50 * time.Millisecond}})
	big := make([]byte, headerBytes)
	(&header{kind: kindHello, body: helloBodyBytes + 1}).put(big)
	wrong := make([]byte, headerBytes)
	(&header{kind: kindRequest, method: 1, call: 1}).put(wrong)
	for name, b := range map[string][]byte{
		"nothing": nil, "half a header": big[:10], "http": []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), "too large": big, "a request": wrong,
	} {
		c, err := net.Dial("tcp", w.l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		c.Write(b)
		c.SetDeadline(time.Now().Add(guard))
		got, err := io.ReadAll(c)
		if nerr := net.Error(nil); errors.As(err, &nerr) && nerr.Timeout() || len(got) > 0 {
			t.Errorf("%s: %q %v", name, got, err)
		}
		c.Close()
	}
	old, _ := (&hello{}).append(make([]byte, headerBytes))
	k := &conn{gives: limits{body: 100}}
	if _, err := k.seal(old, 0, header{kind: kindHello}); err != nil {
		t.Fatal(err)
	}
	patient := newWorld(t, how{}) // waits for a hello longer than a busy machine takes to send it
	c, err := net.Dial("tcp", patient.l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.Write(old)
	got, _ := io.ReadAll(c)
	if len(got) < headerBytes || kind(got[4]) != kindStatus || status.Code(readStatus(got[headerBytes:])) != codes.FailedPrecondition {
		t.Errorf("an old version: %x", got)
	}
}

// TestUnreachable: nobody there, and somebody else there, are errors of which nothing was sent.
func TestUnreachable(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Write([]byte("220 mail.example.org ESMTP, which is not what you want\r\n"))
			c.Close()
		}
	}()
	for range 2 {
		cc := NewClientConn(ClientOptions{Dial: func(ctx context.Context) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
		}})
		if _, err := cc.Connect(t.Context()); !errors.Is(err, ErrUnreachable) || status.Code(err) != codes.Unavailable {
			t.Error(err)
		}
		cc.Close()
		l.Close()
	}
	<-served
}

// TestTimeEndsWhileItConnects: a call whose time is over before there is a connection says so, and not that nobody is there;
// one that has time left says that nobody is.
func TestTimeEndsWhileItConnects(t *testing.T) {
	for name, dial := range map[string]func(context.Context) (net.Conn, error){
		"nobody answers the dial":  func(ctx context.Context) (net.Conn, error) { <-ctx.Done(); return nil, ctx.Err() },
		"nobody answers the hello": func(context.Context) (net.Conn, error) { c, _ := net.Pipe(); return c, nil },
	} {
		for _, c := range []struct {
			call, connect time.Duration
			want          codes.Code
		}{{20 * time.Millisecond, guard, codes.DeadlineExceeded}, {guard, 20 * time.Millisecond, codes.Unavailable}} {
			cc := NewClientConn(ClientOptions{Dial: dial, ConnectTimeout: c.connect})
			ctx, cancel := context.WithTimeout(t.Context(), c.call)
			_, err := cc.Connect(ctx)
			cancel()
			if !errors.Is(err, ErrUnreachable) || status.Code(err) != c.want {
				t.Errorf("%s: %v after %v: %v", name, status.Code(err), min(c.call, c.connect), err)
			}
			cc.Close()
		}
	}
}
