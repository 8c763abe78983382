package server

import (
	"context"
	"time"

	"github.com/quire-kv/quire/internal/auth"
	"github.com/quire-kv/quire/namespace"
	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/store/rpc"
)

// CreateToken answers the secret once; what is kept is its SHA-256.
func (s adminService) CreateToken(ctx context.Context, r *quirev1.CreateTokenRequest) (*quirev1.CreateTokenResponse, error) {
	who, err := operator(ctx)
	if err != nil {
		return nil, err
	}
	record, err := s.tokenRecord(r)
	if err != nil {
		return nil, err
	}
	secret := auth.NewSecret()
	record.Hash = secret.Hash()
	if err := s.node.registry.PutToken(ctx, who, record); err != nil {
		return nil, rpc.Refused(err)
	}
	return &quirev1.CreateTokenResponse{Secret: secret.Reveal(), Token: tokenRecordToProto(&record)}, nil
}

func (s adminService) tokenRecord(r *quirev1.CreateTokenRequest) (namespace.TokenRecord, error) {
	role, ok := auth.ParseRole(r.Role)
	if !ok {
		return namespace.TokenRecord{}, badField("role", "a role is engine, operator or read-only")
	}
	if !auth.ValidName(r.Name) {
		return namespace.TokenRecord{}, badField("name", "a name is 1 to 63 of a-z 0-9 . _ - and begins with a letter or digit")
	}
	if !auth.ValidName(r.Tenant) {
		return namespace.TokenRecord{}, badField("tenant", "a tenant is 1 to 63 of a-z 0-9 . _ - and begins with a letter or digit")
	}
	now := s.node.clock.Wall().Time()
	out := namespace.TokenRecord{Name: r.Name, By: namespace.Principal{Name: r.Name, Tenant: r.Tenant, Role: role}, Created: now}
	if d := r.Lifetime; d != nil && d.AsDuration() != 0 {
		if d.CheckValid() != nil || d.AsDuration() < time.Second {
			return out, badField("lifetime", "a token lives for at least a second, or for ever (0)")
		}
		out.Expiry = now.Add(d.AsDuration())
	}
	return out, nil
}

// ListTokens lists all tokens, without secrets or hashes.
func (s adminService) ListTokens(ctx context.Context, _ *quirev1.ListTokensRequest) (*quirev1.ListTokensResponse, error) {
	who, err := operator(ctx)
	if err != nil {
		return nil, err
	}
	records, err := s.node.registry.Tokens(who)
	if err != nil {
		return nil, rpc.Refused(err)
	}
	out := &quirev1.ListTokensResponse{}
	for i := range records {
		out.Tokens = append(out.Tokens, tokenRecordToProto(&records[i]))
	}
	return out, nil
}

// RevokeToken makes the next call with a token fail; streams of its bearer end with their next keep-alive.
func (s adminService) RevokeToken(ctx context.Context, r *quirev1.RevokeTokenRequest) (*quirev1.RevokeTokenResponse, error) {
	who, err := operator(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.node.registry.RevokeToken(ctx, who, r.Name); err != nil {
		return nil, rpc.Refused(err)
	}
	return &quirev1.RevokeTokenResponse{}, nil
}

func operator(ctx context.Context) (namespace.Principal, error) {
	who, err := principal(ctx)
	if err == nil && who.Role != namespace.RoleOperator {
		err = errRole
	}
	return who, err
}

func tokenRecordToProto(t *namespace.TokenRecord) *quirev1.Token {
	return &quirev1.Token{
		Name: t.Name, Tenant: t.By.Tenant, Role: auth.RoleName(t.By.Role),
		Created: timeToProto(t.Created), Expiry: timeToProto(t.Expiry),
	}
}
