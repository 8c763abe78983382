package server

import (
	"context"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quire-kv/quire/namespace"
	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/core"
)

// RenewLease extends a read lease or a publication lease. A stranger's lease is one that is over.
func (s pageService) RenewLease(ctx context.Context, r *quirev1.RenewLeaseRequest) (*quirev1.RenewLeaseResponse, error) {
	n := s.node
	a, err := n.admit(ctx, r.Namespace, namespace.RightRead, nil)
	if err != nil {
		return nil, err
	}
	var lease core.LeaseID
	var token core.Token
	switch named := r.GetLease().(type) {
	case *quirev1.RenewLeaseRequest_LeaseId:
		if lease, err = leaseIDOf(named.LeaseId); err == nil && lease == (core.LeaseID{}) {
			err = answer(reason.LeaseExpired, nil)
		}
	case *quirev1.RenewLeaseRequest_Token:
		if token, err = tokenOf(named.Token); err == nil && token == (core.Token{}) {
			err = answer(reason.StaleToken, nil)
		}
	default:
		err = badField("lease", "name a read lease or a fencing token")
	}
	if err != nil {
		return nil, err
	}
	ttl, err := n.limits.lease(r.Ttl)
	if err != nil {
		return nil, err
	}
	got, why, err := n.store.Renew(ctx, a.caller, a.ns.ID, a.ns.Epoch, lease, token, ttl)
	if err := answer(why, err); err != nil {
		return nil, err
	}
	return &quirev1.RenewLeaseResponse{Ttl: durationpb.New(got)}, nil
}

// ReleaseLease gives back a read lease or some of its pages. What is not there is given back already.
func (s pageService) ReleaseLease(ctx context.Context, r *quirev1.ReleaseLeaseRequest) (*quirev1.ReleaseLeaseResponse, error) {
	n := s.node
	a, err := n.admit(ctx, r.Namespace, namespace.RightRead, nil)
	if err != nil {
		return nil, err
	}
	lease, err := leaseIDOf(r.LeaseId)
	if err != nil {
		return nil, err
	}
	var runs []core.Run
	if r.Run != nil {
		if _, err := n.limits.keysOf(r.Run, a.space.hashBytes); err != nil {
			return nil, err
		}
		if runs, err = a.runsOf(nil, []*quirev1.KeyRun{r.Run}); err != nil {
			return nil, err
		}
	}
	n.store.Release(a.caller, a.ns.ID, a.ns.Epoch, lease, runs)
	return &quirev1.ReleaseLeaseResponse{}, nil
}
