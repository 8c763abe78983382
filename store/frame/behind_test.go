package frame

import (
	"bytes"
	"context"
	"io"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/store/rpc"
)

// TestRequestBehindEnd: the next request goes out together with the end of a write. It begins when the write is over,
// and is answered behind it, whether the write is refused, and however the bytes are cut on their way.
func TestRequestBehindEnd(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		payload := bytes.Repeat([]byte("page"), 20_000)
		var got []byte
		var refuse, writing bool
		w.write = func(s grpc.ClientStreamingServer[quirev1.WritePagesRequest, quirev1.WritePagesResponse]) error {
			writing = true
			defer func() { writing = false }()
			if refuse {
				return io.ErrUnexpectedEOF // before the end of the client: what it still sends is dropped
			}
			got = got[:0]
			for {
				m, err := s.Recv()
				if err == io.EOF {
					return s.SendAndClose(&quirev1.WritePagesResponse{Pages: []*quirev1.PageStatus{{Outcome: 9}}})
				}
				if err != nil {
					return err
				}
				got = append(got, m.GetChunk()...)
			}
		}
		w.exists = func(_ context.Context, r *quirev1.BatchExistsRequest) (*quirev1.BatchExistsResponse, error) {
			if writing {
				t.Error("the call behind a write began before the write was over")
			}
			return &quirev1.BatchExistsResponse{Present: r.GetSessionId()}, nil
		}
		for call, step := range []int{1 << 30, 1, 7, 1000} {
			refuse = false
			c, raw := w.dialRaw(), []byte(nil)
			for n := uint32(1); n < 8; n += 2 {
				raw = appendWriteAndNext(t, raw, n, payload[:len(payload)/(step%5+1)])
				for at := 0; at < len(raw); at += step {
					if _, err := c.Write(raw[at:min(at+step, len(raw))]); err != nil {
						t.Fatal(err)
					}
					if step < 1000 && at > 4*step { // the first bytes one by one are enough
						if _, err := c.Write(raw[min(at+step, len(raw)):]); err != nil {
							t.Fatal(err)
						}
						break
					}
				}
				raw = raw[:0]
				first, body := readFrame(t, c)
				if refuse != (first.kind == kindStatus) || !refuse && first.kind != kindResponse || first.call != n {
					t.Fatalf("round %d: kind %d of call %d for write %d", call, first.kind, first.call, n)
				}
				if written := new(quirev1.WritePagesResponse); !refuse && (proto.Unmarshal(body, written) != nil || written.GetPages()[0].GetOutcome() != 9) {
					t.Fatalf("round %d: %x", call, body)
				}
				second, body := readFrame(t, c)
				present := new(quirev1.BatchExistsResponse)
				if second.kind != kindResponse || second.call != n+1 || proto.Unmarshal(body, present) != nil || string(present.GetPresent()) != "next" {
					t.Fatalf("round %d: kind %d of call %d behind write %d: %x", call, second.kind, second.call, n, body)
				}
				if !refuse && !bytes.Equal(got, payload[:len(payload)/(step%5+1)]) {
					t.Fatalf("round %d: %d bytes were written", call, len(got))
				}
				refuse = !refuse
			}
			c.Close()
		}
	})
}

// TestAnswersThatGoTogether: the answer to a call whose client has sent the next one already goes out with the answer to
// that, or when that takes long, or the server waits for the rest of it.
func TestAnswersThatGoTogether(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		goOn := make(chan struct{})
		w.exists = func(_ context.Context, r *quirev1.BatchExistsRequest) (*quirev1.BatchExistsResponse, error) {
			if string(r.GetSessionId()) == "long" {
				<-goOn
			}
			return &quirev1.BatchExistsResponse{Present: r.GetSessionId()}, nil
		}
		c, n := w.dialRaw(), uint32(0)
		request := func(said string) []byte {
			body, err := proto.Marshal(&quirev1.BatchExistsRequest{SessionId: []byte(said)})
			if err != nil {
				t.Fatal(err)
			}
			n++
			return frameBytes(header{kind: kindRequest, method: 3, call: n}, body, nil)
		}
		answered := uint32(0)
		mustAnswer := func(said string) {
			t.Helper()
			h, body := readFrame(t, c)
			answered++
			got := new(quirev1.BatchExistsResponse)
			if h.kind != kindResponse || h.call != answered || proto.Unmarshal(body, got) != nil || string(got.GetPresent()) != said {
				t.Fatalf("kind %d of call %d: %q, want %q of call %d", h.kind, h.call, got.GetPresent(), said, answered)
			}
		}
		send := func(b []byte) {
			t.Helper()
			if _, err := c.Write(b); err != nil {
				t.Fatal(err)
			}
		}
		send(bytes.Join([][]byte{request("a"), request("b"), request("c")}, nil))
		mustAnswer("a")
		mustAnswer("b")
		mustAnswer("c")
		send(bytes.Join([][]byte{request("d"), request("long")}, nil))
		mustAnswer("d")
		goOn <- struct{}{}
		mustAnswer("long")
		for cut := 1; cut < headerBytes; cut += 5 {
			first, next := request("e"), request("f")
			send(append(first, next[:cut]...))
			mustAnswer("e")
			send(next[cut:])
			mustAnswer("f")
		}
	})
}

// dialRaw is a connection that a test speaks on itself, greeted.
func (w *world) dialRaw() net.Conn {
	w.t.Helper()
	c, err := net.Dial("tcp", w.l.Addr().String())
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(guard))
	said, _ := (&hello{version: Version}).append(make([]byte, headerBytes))
	k := &conn{gives: limits{body: 100}}
	if _, err := k.seal(said, 0, header{kind: kindHello}); err != nil {
		w.t.Fatal(err)
	}
	if _, err := c.Write(said); err != nil {
		w.t.Fatal(err)
	}
	if h, _ := readFrame(w.t, c); h.kind != kindWelcome {
		w.t.Fatalf("kind %d in place of a welcome", h.kind)
	}
	return c
}

// appendWriteAndNext appends a WritePages, number n, of one batch, its end, and the request of call n+1.
func appendWriteAndNext(t *testing.T, b []byte, n uint32, payload []byte) []byte {
	t.Helper()
	b = append(b, frameBytes(header{kind: kindRequest, flags: flagMore, method: 5, call: n}, nil, nil)...)
	var out batch
	out.add(&rpc.Chunk{Head: []byte{24, 1}, Body: payload})
	b = append(b, frameBytes(header{kind: kindMessage, flags: flagChunks, method: 5, call: n}, out.head[headerBytes:], payload)...)
	b = append(b, frameBytes(header{kind: kindEnd, method: 5, call: n}, nil, nil)...)
	next, err := proto.Marshal(&quirev1.BatchExistsRequest{SessionId: []byte("next")})
	if err != nil {
		t.Fatal(err)
	}
	return append(b, frameBytes(header{kind: kindRequest, method: 3, call: n + 1}, next, nil)...)
}

func readFrame(t testing.TB, c net.Conn) (h header, body []byte) {
	t.Helper()
	var raw [headerBytes]byte
	if _, err := io.ReadFull(c, raw[:]); err != nil {
		t.Fatal(err)
	}
	if err := h.decode(&raw, &limits{body: 1 << 20, data: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	body = make([]byte, h.body)
	if _, err := io.ReadFull(c, body); err != nil {
		t.Fatal(err)
	}
	return h, body
}
