package namespace

import (
	"time"

	"github.com/quire-kv/quire/reason"
)

// Role is what a principal may do.
type Role uint8

// The roles.
const (
	RoleEngine   Role = iota + 1 // open, read, publish, delete its own tenant's pages
	RoleOperator                 // everything, for every tenant
	RoleReadOnly                 // read pages and status
)

// Principal is who calls, once authenticated. It lives here because tenants, grants and roles do.
type Principal struct {
	Name   string `json:"name"`
	Tenant string `json:"tenant"`
	Role   Role   `json:"role"`
}

// Right is what access to a namespace allows.
type Right uint8

// The rights.
const (
	RightRead Right = iota + 1
	RightPublish
	RightManage // drain, retire, purge, waive, grant, set policy, delete
)

// Grant lets another tenant in.
type Grant struct {
	Tenant string `json:"tenant"`
	Right  Right  `json:"right"` // RightRead or RightPublish (which includes reading)
}

// maxGrants bounds the grants of one namespace: every access by a stranger scans them.
const maxGrants = 256

// allows is the one rule of access, without allocation:
//
//	            own tenant               granted tenant      others
//	operator    read publish manage      the same            the same
//	engine      read publish manage*     what is granted     Absent
//	read-only   read                     read                Absent
//
// *: deleting pages; the registry's own changes ask for more (mayEnd, operators).
func (n *Namespace) allows(by Principal, right Right) reason.Reason {
	most := Right(0)
	switch {
	case by.Role == RoleOperator:
		most = RightManage
	case by.Role != RoleEngine && by.Role != RoleReadOnly:
	case by.Tenant == n.Tenant && by.Tenant != "":
		most = RightManage
	default:
		most = n.granted(by.Tenant)
	}
	if by.Role == RoleReadOnly {
		most = min(most, RightRead)
	}
	switch {
	case most == 0:
		return reason.Absent
	case right > most:
		return reason.Unauthorized
	}
	return reason.None
}

func (n *Namespace) granted(tenant string) Right {
	for i := range n.Grants {
		if n.Grants[i].Tenant == tenant {
			return n.Grants[i].Right
		}
	}
	return 0
}

// mayEnd says whether by may take pages away that others could be using: operators; an engine only where nobody else
// can be (its own tenant, no grants, unused within the hour).
func (n *Namespace) mayEnd(by Principal, now time.Time) *Refusal {
	switch {
	case by.Role == RoleOperator:
		return nil
	case by.Role != RoleEngine || by.Tenant != n.Tenant:
		return refuse(reason.Unauthorized, "", "this needs the operator role")
	case len(n.Grants) > 0:
		return refuse(reason.Unauthorized, "", "other tenants may use this namespace: ending its pages needs the operator role")
	case n.inUse(now):
		return refuse(reason.Unauthorized, "", "used at %s: ending pages that others use needs the operator role", n.LastUse.Format(time.RFC3339))
	}
	return nil
}

// onlyOperator refuses everybody else.
func onlyOperator(by Principal) *Refusal {
	if by.Role == RoleOperator {
		return nil
	}
	return refuse(reason.Unauthorized, "", "this needs the operator role")
}

// unseen is what is answered about a namespace that does not exist or that by may not know of.
func unseen(by Principal) *Refusal {
	if by.Role == RoleOperator {
		return refuse(reason.NotFound, "id", "no such namespace")
	}
	return refuse(reason.Absent, "", "absent")
}

// checkGrant judges a grant on n.
func (n *Namespace) checkGrant(g Grant) *Refusal {
	switch {
	case n.Spec.WeakNames:
		return refuse(reason.WeakNames, "", "the namespace rests on weak names and cannot be shared: open one with digests")
	case !isWord(g.Tenant):
		return invalid("tenant", "%.64q: write a tenant of 1 to 64 of a-z, A-Z, 0-9, _, - and .", g.Tenant)
	case g.Tenant == n.Tenant:
		return invalid("tenant", "%q owns the namespace", g.Tenant)
	case g.Right != RightRead && g.Right != RightPublish:
		return invalid("right", "write read, or read and publish")
	case len(n.Grants) >= maxGrants && n.granted(g.Tenant) == 0:
		return refuse(reason.LimitExceeded, "", "%d grants: revoke one first", len(n.Grants))
	}
	return nil
}
