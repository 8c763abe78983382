package namespace

import (
	"slices"
	"time"

	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/page"
)

// State is a namespace's life; a reopened one is Active in a new epoch.
//
//	         Open            drain              retire
//	(none) ------> Active ----------> Draining ---------> Retired
//	                 ^  \__ purge: next epoch                |
//	                 |_______ Open: next epoch ______________|
type State uint8

// The states.
const (
	Active   State = iota + 1
	Draining       // no new publications
	Retired        // no reads either
)

// String is the stable lower-case name.
func (s State) String() string {
	switch s {
	case Active:
		return "active"
	case Draining:
		return "draining"
	case Retired:
		return "retired"
	}
	return "invalid_state"
}

// Namespace is one record of the registry, as of one revision. Shared by readers: never written to.
type Namespace struct {
	ID        page.NamespaceID
	Epoch     page.Epoch
	Tenant    string
	Spec      *Spec
	State     State
	Waivers   []Waiver
	Grants    []Grant
	Policy    Policy
	Created   time.Time // of this epoch's life
	LastUse   time.Time // to five minutes
	AllowFork bool      // an operator allowed siblings with another hash contract
	Revision  Revision

	factors []Factor // of Spec
	changes []string // ids of the last changes, newest last: how a writer finds its own after an unknown outcome
}

// Policy is per namespace.
type Policy struct {
	DefaultExpiry time.Duration `json:"default_expiry_ns"` // 0: pages do not expire
	QuotaBytes    uint64        `json:"quota_bytes"`       // 0: none
	// Durable: a publication that names no durability is acknowledged when the disk has it.
	Durable bool `json:"durable,omitempty"`
}

// Periods of use.
const (
	useWindow   = time.Hour       // a namespace used within it is in use
	useInterval = 5 * time.Minute // between two writes of LastUse
)

func (n *Namespace) inUse(now time.Time) bool {
	return n.State != Retired && now.Sub(n.LastUse) <= useWindow
}

func (n *Namespace) useIsStale(now time.Time) bool { return now.Sub(n.LastUse) >= useInterval }

// clone is a copy that its owner may change, field by field.
func (n *Namespace) clone() *Namespace {
	c := *n
	c.Waivers, c.Grants, c.changes = slices.Clone(n.Waivers), slices.Clone(n.Grants), slices.Clone(n.changes)
	return &c
}

// moveTo is n in state to; nil without a refusal: it is there already.
func (n *Namespace) moveTo(to State) (*Namespace, *Refusal) {
	switch {
	case to < Active || to > Retired:
		return nil, invalid("state", "write draining or retired")
	case to == n.State:
		return nil, nil
	case n.State == Retired:
		return nil, refuse(reason.Retired, "state", "the namespace is retired: opening its spec again begins the next epoch")
	case to != n.State+1:
		return nil, invalid("state", "%v to %v: the way is active, draining, retired", n.State, to)
	}
	c := n.clone()
	c.State = to
	return c, nil
}

// purged is n in its next epoch.
func (n *Namespace) purged() (*Namespace, *Refusal) {
	switch n.State {
	case Draining:
		return nil, refuse(reason.Draining, "state", "only an active namespace begins another epoch")
	case Retired:
		return nil, refuse(reason.Retired, "state", "only an active namespace begins another epoch")
	}
	c := n.clone()
	c.Epoch++
	return c, nil
}

// reopened is a retired n in its next life: what others were allowed in the last one ended with it, the operator's
// bounds did not.
func (n *Namespace) reopened(now time.Time) *Namespace {
	c := n.clone()
	c.Epoch++
	c.State, c.Created, c.LastUse = Active, now, now
	c.Waivers, c.Grants, c.AllowFork = nil, nil, false
	return c
}

func (p Policy) check() *Refusal {
	if p.DefaultExpiry < 0 {
		return invalid("default_expiry", "negative: write a duration, or 0 for none")
	}
	return nil
}
