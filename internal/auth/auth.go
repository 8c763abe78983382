// Package auth says who calls: bearer tokens, client certificates, and the rule of where a server may listen without
// either. It decides who a caller is, never what the caller may do: that is namespace.Registry's.
package auth

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/quire-kv/quire/namespace"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/rpc"
)

// Mode is a set of ways to be authenticated.
type Mode uint8

// The ways. Tokens and MTLS may be combined: a token, where one is sent, goes before the certificate.
const (
	None   Mode = 0         // every caller is Local(); for loopback listeners only
	Tokens Mode = 1 << iota // "authorization: Bearer qk_..."
	MTLS                    // a verified client certificate with a URI SAN quire://tenant/role/name
)

// Local is the principal of every caller in mode None.
func Local() namespace.Principal {
	return namespace.Principal{Name: "local", Tenant: "default", Role: namespace.RoleOperator}
}

// Directory finds live tokens by the SHA-256 of their secret; *namespace.Registry is one. It answers from memory.
type Directory interface {
	TokenByHash(h [32]byte) (namespace.TokenRecord, bool)
}

// Options of an Authenticator.
type Options struct {
	Mode      Mode
	Directory Directory // required with Tokens
	// Open methods need no principal: health checks. nil: none.
	Open func(fullMethod string) bool
	// Refused is told of each caller that is turned away; nil: nobody is.
	Refused func(fullMethod string)
}

// Authenticator puts a principal into the context of every call, or refuses the call. Safe for concurrent use.
type Authenticator struct{ o Options }

// New checks o.
func New(o Options) (*Authenticator, error) {
	if o.Mode&Tokens != 0 && o.Directory == nil {
		return nil, rpc.Errorf(reason.InvalidSpec, "authentication by token needs a directory of tokens")
	}
	if o.Open == nil {
		o.Open = func(string) bool { return false }
	}
	if o.Refused == nil {
		o.Refused = func(string) {}
	}
	return &Authenticator{o: o}, nil
}

// errUnauthenticated says nothing about why: not whether a token exists, ran out or never was.
var errUnauthenticated = &rpc.Error{
	Code: codes.Unauthenticated, Reason: reason.Unauthorized,
	Text: "no valid token or client certificate",
}

// Identify is the principal of the call that ctx belongs to, looked up afresh: a token revoked since then is refused.
func (a *Authenticator) Identify(ctx context.Context) (namespace.Principal, error) {
	if a.o.Mode == None {
		return Local(), nil
	}
	if a.o.Mode&Tokens != 0 {
		if v := metadata.ValueFromIncomingContext(ctx, "authorization"); len(v) > 0 {
			return a.byBearer(v)
		}
	}
	if a.o.Mode&MTLS != 0 {
		if p, ok := byCertificate(ctx); ok {
			return p, nil
		}
	}
	return namespace.Principal{}, errUnauthenticated
}

func (a *Authenticator) byBearer(values []string) (namespace.Principal, error) {
	if len(values) != 1 {
		return namespace.Principal{}, errUnauthenticated
	}
	secret, ok := parseBearer(values[0])
	if !ok {
		return namespace.Principal{}, errUnauthenticated
	}
	record, ok := a.o.Directory.TokenByHash(secret.Hash())
	if !ok {
		return namespace.Principal{}, errUnauthenticated
	}
	return record.By, nil
}

func byCertificate(ctx context.Context) (namespace.Principal, bool) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return namespace.Principal{}, false
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.VerifiedChains) == 0 || len(info.State.VerifiedChains[0]) == 0 {
		return namespace.Principal{}, false
	}
	return PrincipalOf(info.State.VerifiedChains[0][0])
}

type callKey struct{}

// call is what the context of an authenticated call carries.
type call struct {
	principal namespace.Principal
	by        *Authenticator
}

// PrincipalFrom is the principal of an authenticated call.
func PrincipalFrom(ctx context.Context) (namespace.Principal, bool) {
	c, ok := ctx.Value(callKey{}).(*call)
	if !ok {
		return namespace.Principal{}, false
	}
	return c.principal, true
}

// Live reports whether the caller would still be let in as who it was: streams that live long ask now and then.
func Live(ctx context.Context) bool {
	c, ok := ctx.Value(callKey{}).(*call)
	if !ok {
		return false
	}
	now, err := c.by.Identify(ctx)
	return err == nil && now == c.principal
}

// Enter is ctx with the caller's principal, or a refusal. Handlers call it before they receive a message, so that
// nobody unknown makes the server hold one.
func (a *Authenticator) Enter(ctx context.Context, method string) (context.Context, error) {
	if a.o.Open(method) {
		return ctx, nil
	}
	p, err := a.Identify(ctx)
	if err != nil {
		a.o.Refused(method)
		return nil, err
	}
	return context.WithValue(ctx, callKey{}, &call{p, a}), nil
}

// StreamWithContext is s under another context, which must be made from that of s.
func StreamWithContext(s grpc.ServerStream, ctx context.Context) grpc.ServerStream {
	return &contextStream{s, ctx}
}

type contextStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *contextStream) Context() context.Context { return s.ctx }
