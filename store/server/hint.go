package server

import (
	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/namespace"
	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
)

// maxReuseSeconds bounds what a client may expect: a year.
const maxReuseSeconds = 365 * 24 * 3600

// advises says whether the caller's word may reorder pages of the namespace: those are its own tenant's. Others may
// read and publish by a grant, and advise nothing.
func (a *asked) advises() bool {
	return a.who.Role == namespace.RoleOperator || a.who.Tenant == a.ns.Tenant
}

// hintOf reads a hint; one of a stranger to the tenant says nothing, and what this version does not know is passed over.
func (a *asked) hintOf(h *quirev1.Hint) (out evict.Hint, err error) {
	if h == nil {
		return out, nil
	}
	if d := h.GetExpectedReuse(); d != nil {
		if d.CheckValid() != nil || d.AsDuration() < 0 {
			return out, badField("hint.expected_reuse", "a time from now, or 0 where it is not known")
		}
		out.Reuse = float32(min(d.AsDuration().Seconds(), maxReuseSeconds))
	}
	if c := h.GetCategory(); c > 0 && c < quirev1.WorkCategory(evict.NumCategories) {
		out.Category = evict.Category(c)
	}
	if s := h.GetNext(); s > 0 && s < quirev1.NextStep(evict.NumNexts) {
		out.Next = evict.Next(s)
	}
	out.Answer = h.GetAnswerTokens()
	if !a.advises() {
		return evict.Hint{}, nil
	}
	return out, nil
}
