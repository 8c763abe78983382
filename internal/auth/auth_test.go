package auth

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/quire-kv/quire/namespace"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/rpc"
)

// tokens is a Directory.
type tokens struct {
	mu sync.Mutex
	m  map[[32]byte]namespace.TokenRecord
}

func (d *tokens) TokenByHash(h [32]byte) (namespace.TokenRecord, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	r, ok := d.m[h]
	return r, ok
}

func (d *tokens) set(s Secret, p namespace.Principal) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.m[s.Hash()] = namespace.TokenRecord{By: p}
}

// whoami serves one unary call and one stream that answer the caller's URI.
func whoami(t *testing.T, o Options, tlsConfig *tls.Config) (address string) {
	t.Helper()
	a, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	var options []grpc.ServerOption
	if tlsConfig != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(tlsConfig)))
	}
	s := grpc.NewServer(options...)
	name := func(ctx context.Context) *wrapperspb.StringValue {
		p, ok := PrincipalFrom(ctx)
		if !ok {
			return wrapperspb.String("nobody")
		}
		return wrapperspb.String(PrincipalURI(p))
	}
	s.RegisterService(&grpc.ServiceDesc{
		ServiceName: "w", HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{MethodName: "U", Handler: func(_ any, ctx context.Context, dec func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			ctx, err := a.Enter(ctx, "/w/U")
			if err != nil {
				return nil, err
			}
			return name(ctx), dec(new(emptypb.Empty))
		}}},
		Streams: []grpc.StreamDesc{{StreamName: "S", ServerStreams: true, Handler: func(_ any, st grpc.ServerStream) error {
			ctx, err := a.Enter(st.Context(), "/w/S")
			if err != nil {
				return err
			}
			return st.SendMsg(name(StreamWithContext(st, ctx).Context()))
		}}},
	}, struct{}{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() { defer close(served); s.Serve(l) }()
	t.Cleanup(func() { s.Stop(); <-served })
	return l.Addr().String()
}

// ask calls both ways and insists on one answer.
func ask(t *testing.T, address string, md metadata.MD, options ...grpc.DialOption) (string, error) {
	t.Helper()
	cc, err := grpc.NewClient(address, options...)
	if err != nil {
		t.Fatal(err)
	}
	defer cc.Close()
	ctx, cancel := context.WithTimeout(metadata.NewOutgoingContext(context.Background(), md), 10*time.Second)
	defer cancel()
	unary := new(wrapperspb.StringValue)
	err1 := cc.Invoke(ctx, "/w/U", new(emptypb.Empty), unary)
	streamed := new(wrapperspb.StringValue)
	st, err2 := cc.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, "/w/S")
	if err2 == nil {
		if err2 = st.CloseSend(); err2 == nil {
			err2 = st.RecvMsg(streamed)
		}
	}
	if status.Code(err1) != status.Code(err2) || unary.Value != streamed.Value {
		t.Fatalf("unary %q %v, stream %q %v", unary.Value, err1, streamed.Value, err2)
	}
	return unary.Value, err1
}

func bearerMD(s string) metadata.MD { return metadata.Pairs("authorization", s) }

func TestCase_C53_Tokens(t *testing.T) {
	dir := &tokens{m: map[[32]byte]namespace.TokenRecord{}}
	good, revoked := NewSecret(), NewSecret()
	dir.set(good, namespace.Principal{Name: "e1", Tenant: "a", Role: namespace.RoleEngine})
	refused := 0
	var mu sync.Mutex
	address := whoami(t, Options{Mode: Tokens, Directory: dir, Refused: func(string) { mu.Lock(); refused++; mu.Unlock() }}, nil)
	plain := grpc.WithTransportCredentials(insecure.NewCredentials())
	if got, err := ask(t, address, bearerMD("Bearer "+good.Reveal()), plain); err != nil || got != "quire://a/engine/e1" {
		t.Errorf("good token: %q %v", got, err)
	}
	bad := []metadata.MD{
		nil, bearerMD("Bearer " + revoked.Reveal()), bearerMD(good.Reveal()), bearerMD("Basic " + good.Reveal()), bearerMD("Bearer "),
		bearerMD("Bearer " + good.Reveal() + "x"), metadata.Pairs("authorization", "Bearer "+good.Reveal(), "authorization", "Bearer "+good.Reveal()),
	}
	var text string
	for _, md := range bad {
		_, err := ask(t, address, md, plain)
		if status.Code(err) != codes.Unauthenticated || !errors.Is(rpc.FromStatus(err), reason.Unauthorized) {
			t.Errorf("%v: %v", md, err)
		}
		if text == "" {
			text = err.Error()
		} else if err.Error() != text {
			t.Errorf("the refusal tells cases apart: %q and %q", text, err)
		}
	}
	if refused != 2*len(bad) {
		t.Errorf("told of %d refusals, want %d", refused, 2*len(bad))
	}
}

func TestNoneIsLocal(t *testing.T) {
	address := whoami(t, Options{}, nil)
	got, err := ask(t, address, nil, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil || got != PrincipalURI(Local()) {
		t.Errorf("%q %v", got, err)
	}
}

func TestOpenMethods(t *testing.T) {
	dir := &tokens{}
	address := whoami(t, Options{Mode: Tokens, Directory: dir, Open: func(string) bool { return true }}, nil)
	got, err := ask(t, address, nil, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil || got != "nobody" {
		t.Errorf("%q %v", got, err)
	}
}

func devCA(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "tls")
	if _, err := WriteDevCA(DevCA{Dir: dir}); err != nil {
		t.Fatal(err)
	}
	return dir
}

func clientTLS(t *testing.T, dir string, p *namespace.Principal) grpc.DialOption {
	t.Helper()
	f := Files{CA: filepath.Join(dir, CAFile)}
	if p != nil {
		cert, key := ClientFiles(*p)
		f.Cert, f.Key = filepath.Join(dir, cert), filepath.Join(dir, key)
	}
	c, err := ClientTLS(f, "")
	if err != nil {
		t.Fatal(err)
	}
	return grpc.WithTransportCredentials(credentials.NewTLS(c))
}

func serverTLS(t *testing.T, dir string, required bool) *tls.Config {
	t.Helper()
	c, err := ServerTLS(Files{
		Cert: filepath.Join(dir, ServerCertFile), Key: filepath.Join(dir, ServerKeyFile), CA: filepath.Join(dir, CAFile),
	}, true, required)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestCase_C53_MTLS(t *testing.T) {
	dir, other := devCA(t), devCA(t)
	engine := namespace.Principal{Name: "engine", Tenant: "default", Role: namespace.RoleEngine}
	strict := whoami(t, Options{Mode: MTLS}, serverTLS(t, dir, true))
	if got, err := ask(t, strict, nil, clientTLS(t, dir, &engine)); err != nil || got != PrincipalURI(engine) {
		t.Errorf("own certificate: %q %v", got, err)
	}
	for name, option := range map[string]grpc.DialOption{
		"no certificate": clientTLS(t, dir, nil),
		"plain text":     grpc.WithTransportCredentials(insecure.NewCredentials()),
		"another CA":     clientTLS(t, other, &engine),
	} {
		if _, err := ask(t, strict, nil, option); err == nil {
			t.Errorf("%s is let in", name)
		}
	}
	dirTokens := &tokens{m: map[[32]byte]namespace.TokenRecord{}}
	secret := NewSecret()
	dirTokens.set(secret, namespace.Principal{Name: "ops", Tenant: "t", Role: namespace.RoleOperator})
	both := whoami(t, Options{Mode: MTLS | Tokens, Directory: dirTokens}, serverTLS(t, dir, false))
	if got, err := ask(t, both, bearerMD("Bearer "+secret.Reveal()), clientTLS(t, dir, &engine)); err != nil || got != "quire://t/operator/ops" {
		t.Errorf("a token goes before the certificate: %q %v", got, err)
	}
	if got, err := ask(t, both, nil, clientTLS(t, dir, &engine)); err != nil || got != PrincipalURI(engine) {
		t.Errorf("certificate alone: %q %v", got, err)
	}
	if _, err := ask(t, both, nil, clientTLS(t, dir, nil)); status.Code(err) != codes.Unauthenticated {
		t.Errorf("neither: %v", err)
	}
	if _, err := ask(t, both, bearerMD("Bearer nonsense"), clientTLS(t, dir, &engine)); status.Code(err) != codes.Unauthenticated {
		t.Errorf("a bad token falls back to the certificate: %v", err)
	}
}

func TestDevCAFiles(t *testing.T) {
	dir := devCA(t)
	keys, err := filepath.Glob(filepath.Join(dir, "*-key.pem"))
	if err != nil || len(keys) != 3 {
		t.Fatalf("keys %v %v", keys, err)
	}
	for _, k := range keys {
		info, err := os.Stat(k)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v", k, info.Mode(), err)
		}
	}
	if _, err := WriteDevCA(DevCA{Dir: dir}); !errors.Is(err, os.ErrExist) {
		t.Errorf("files are overwritten: %v", err)
	}
	bad := []namespace.Principal{{Name: "Ä", Tenant: "a", Role: namespace.RoleEngine}}
	if _, err := WriteDevCA(DevCA{Dir: t.TempDir(), Clients: bad}); !errors.Is(err, ErrPrincipalURI) {
		t.Errorf("a name that no certificate can carry: %v", err)
	}
}

// A pair that was replaced is used from the next handshake on; one that is broken leaves the last good one in use.
func TestCertificateReload(t *testing.T) {
	dir, next := devCA(t), devCA(t)
	r := &reloading{cert: filepath.Join(dir, ServerCertFile), key: filepath.Join(dir, ServerKeyFile)}
	first, err := r.get()
	if err != nil {
		t.Fatal(err)
	}
	if again, _ := r.get(); again != first {
		t.Error("an unchanged pair is read again")
	}
	replace := func(name string, data []byte, at time.Time) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(filepath.Join(dir, name), at, at); err != nil {
			t.Fatal(err)
		}
	}
	read := func(name string) []byte {
		data, err := os.ReadFile(filepath.Join(next, name))
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	replace(ServerCertFile, read(ServerCertFile), time.Now().Add(time.Hour)) // half replaced: key does not fit
	if got, err := r.get(); err != nil || got != first {
		t.Errorf("half a pair is used: %v", err)
	}
	replace(ServerKeyFile, read(ServerKeyFile), time.Now().Add(time.Hour))
	if got, err := r.get(); err != nil || got == first {
		t.Errorf("the new pair is not used: %v", err)
	}
	os.Remove(filepath.Join(dir, ServerKeyFile))
	if got, err := r.get(); err != nil || got == first {
		t.Errorf("a missing file takes the last good pair away: %v", err)
	}
}

func TestLiveEndsWithTheToken(t *testing.T) {
	dir := &tokens{m: map[[32]byte]namespace.TokenRecord{}}
	s := NewSecret()
	dir.set(s, namespace.Principal{Name: "e", Tenant: "a", Role: namespace.RoleEngine})
	a, err := New(Options{Mode: Tokens, Directory: dir})
	if err != nil {
		t.Fatal(err)
	}
	ctx, err := a.Enter(metadata.NewIncomingContext(context.Background(), bearerMD("bearer "+s.Reveal())), "/x")
	if err != nil || !Live(ctx) {
		t.Fatalf("a live token: %v", err)
	}
	dir.set(s, namespace.Principal{Name: "e", Tenant: "b", Role: namespace.RoleEngine})
	if Live(ctx) {
		t.Error("a token that means another is live")
	}
	delete(dir.m, s.Hash())
	if Live(ctx) || Live(context.Background()) {
		t.Error("a revoked token is live")
	}
}
