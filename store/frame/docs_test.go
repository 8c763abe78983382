package frame

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"regexp"
	"strings"
	"testing"

	"google.golang.org/grpc"

	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/store/rpc"
)

func doc(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("../../docs/formats/frames.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestMethodsEqualDocs: every method of the page service has its number, the one that the document says.
func TestMethodsEqualDocs(t *testing.T) {
	said := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^\| (\d+) \| (\w+) \|$`).FindAllStringSubmatch(doc(t), -1) {
		said[m[2]] = m[1]
	}
	d := &quirev1.PageService_ServiceDesc
	var names []string
	for _, m := range d.Methods {
		names = append(names, m.MethodName)
	}
	for _, s := range d.Streams {
		names = append(names, s.StreamName)
	}
	for _, name := range names {
		k, ok := methodNumber("/" + d.ServiceName + "/" + name)
		if !ok || said[name] != fmt.Sprint(k) {
			t.Errorf("%s has number %d, and %q in the document", name, k, said[name])
		}
	}
	if len(said) != len(names) || len(methodNames) != len(names)+1 {
		t.Errorf("%d methods, %d documented, %d numbered", len(names), len(said), len(methodNames)-1)
	}
}

// examples are the hex blocks of the document, by their first word.
func examples(t *testing.T) map[string][]byte {
	t.Helper()
	text := doc(t)
	text = text[strings.Index(text, "## An example"):]
	out := map[string][]byte{}
	for _, block := range strings.Split(text, "\n\n") {
		lines := strings.Split(strings.Trim(strings.TrimPrefix(strings.TrimSpace(block), "```"), "\n`"), "\n")
		var all string
		for _, l := range lines[1:] {
			all += strings.ReplaceAll(l, " ", "")
		}
		if b, err := hex.DecodeString(all); err == nil && len(b) > 0 {
			name := strings.Join(strings.FieldsFunc(lines[0], func(r rune) bool { return r == ',' || r == ' ' || r == ':' })[:2], " ")
			out[name] = b
		}
	}
	return out
}

// tap is a connection that remembers what was read from it and written to it.
type tap struct {
	net.Conn
	read, wrote *bytes.Buffer
}

func (c tap) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.read.Write(p[:n])
	return n, err
}

func (c tap) Write(p []byte) (int, error) {
	c.wrote.Write(p)
	return c.Conn.Write(p)
}

// TestExampleEqualsCode: the document's conversation is what is really said.
func TestExampleEqualsCode(t *testing.T) {
	want := examples(t)
	var read, wrote bytes.Buffer
	h := how{client: ClientOptions{Instance: "e0"}}
	for i := range h.server.Boot {
		h.server.Boot[i] = byte(i + 1)
	}
	w := newWorld(t, h)
	dial := w.cc.o.Dial
	w.cc.o.Dial = func(ctx context.Context) (net.Conn, error) {
		c, err := dial(ctx)
		return tap{c, &read, &wrote}, err
	}
	w.exists = func(context.Context, *quirev1.BatchExistsRequest) (*quirev1.BatchExistsResponse, error) {
		return &quirev1.BatchExistsResponse{Present: []byte{1}}, nil
	}
	w.fetch = func(_ *quirev1.FetchRequest, s grpc.ServerStreamingServer[quirev1.FetchResponse]) error {
		head, err := (&rpc.FetchHead{Offset: 5, Trailer: &quirev1.PageStatus{Outcome: quirev1.Outcome_OUTCOME_OK}}).Append(nil)
		if err != nil {
			return err
		}
		pin := rpc.NewPin(func() {})
		defer pin.Done()
		return s.SendMsg(&rpc.Chunk{Head: head, Body: []byte("hi"), Pin: pin})
	}
	if _, err := w.pages.BatchExists(w.ctx(), &quirev1.BatchExistsRequest{SessionId: []byte("s")}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s, err := w.pages.Fetch(ctx, &quirev1.FetchRequest{LeaseId: []byte("l")})
	if err != nil {
		t.Fatal(err)
	}
	if m, err := s.Recv(); err != nil || string(m.GetChunk()) != "hi" {
		t.Fatal(m, err)
	}
	s.Recv()
	sent := wrote.Bytes()
	if at := len(want["HELLO version"]) + 20; len(sent) > at+4 { // the time left is what it is
		copy(sent[at:at+4], want["REQUEST BatchExists"][20:24])
	}
	compare(t, "the client says", sent, want["HELLO version"], want["REQUEST BatchExists"], want["REQUEST Fetch"])
	compare(t, "the server says", read.Bytes(), want["WELCOME version"], want["RESPONSE BatchExistsResponse{present"], want["MESSAGE with"], want["STATUS OK"])
}

func compare(t *testing.T, what string, got []byte, parts ...[]byte) {
	t.Helper()
	for _, p := range parts {
		if len(p) == 0 {
			t.Errorf("%s: the document lacks an example", what)
		}
	}
	if all := bytes.Join(parts, nil); !bytes.Equal(got, all) {
		t.Errorf("%s\n%s, in the document\n%s", what, hex.Dump(got), hex.Dump(all))
	}
}
