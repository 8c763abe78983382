package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
)

// shortID is how many hex digits tables show of an id.
const shortID = 12

// namespaceView is a namespace as -o json gives it.
type namespaceView struct {
	ID       string       `json:"id"`
	Epoch    uint64       `json:"epoch"`
	Tenant   string       `json:"tenant"`
	State    string       `json:"state"`
	Model    string       `json:"model"`
	Weights  string       `json:"weights"`
	Pages    uint64       `json:"pages"`
	Bytes    uint64       `json:"bytes"`
	Hits     uint64       `json:"hits"`
	Misses   uint64       `json:"misses"`
	NeverHit bool         `json:"never_hit"`
	Orphans  uint64       `json:"orphans"`
	Evicted  uint64       `json:"evicted_pages"` // last copies, for room
	Last     string       `json:"last_write,omitempty"`
	Created  string       `json:"created,omitempty"`
	LastUse  string       `json:"last_use,omitempty"`
	HashSize uint32       `json:"hash_bytes"`
	Groups   []groupView  `json:"groups"`
	Waivers  []waiverView `json:"waivers"`
	Grants   []grantView  `json:"grants"`
	Policy   policyView   `json:"policy"`
	// Instances are the engines that report from it, by name.
	Instances []instanceView  `json:"instances"`
	Spec      json.RawMessage `json:"spec,omitempty"`
}

type groupView struct {
	ID         string `json:"id"`
	Kind       string `json:"kind"`
	PageTokens uint32 `json:"page_tokens"`
	KVHeads    uint32 `json:"kv_heads"`
	Layers     uint32 `json:"layers"`
	PageBytes  uint64 `json:"page_bytes"`
	Grade      string `json:"grade"`
}

type waiverView struct {
	ID     string   `json:"id"`
	Factor string   `json:"factor"`
	Values []string `json:"values"` // the anchor first
	Author string   `json:"author"`
	Reason string   `json:"reason"`
	Expiry string   `json:"expiry"`
}

type grantView struct {
	Tenant string `json:"tenant"`
	Right  string `json:"right"`
}

type policyView struct {
	DefaultExpirySeconds float64 `json:"default_expiry_seconds"` // 0: pages do not expire
	QuotaBytes           uint64  `json:"quota_bytes"`            // 0: none
	DefaultDurability    string  `json:"default_durability"`     // memory or disk
}

func viewOf(n *quirev1.Namespace) namespaceView {
	u := n.GetUsage()
	v := namespaceView{
		ID: hex.EncodeToString(n.GetId()), Epoch: n.GetEpoch(), Tenant: n.GetTenant(), State: stateName(n.GetState()),
		Pages: u.GetPages(), Bytes: u.GetBytes(), Hits: u.GetHits(), Misses: u.GetMisses(), NeverHit: u.GetNeverHit(), Orphans: u.GetOrphans(), Evicted: u.GetEvictedPages(),
		Last: instant(u.GetLastWrite()), Created: instant(n.GetCreated()), LastUse: instant(n.GetLastUse()),
		Instances: instanceViews(n.GetInstances()), HashSize: n.GetHashBytes(), Groups: []groupView{}, Waivers: []waiverView{}, Grants: []grantView{},
		Policy: policyView{
			n.GetPolicy().GetDefaultExpiry().AsDuration().Seconds(), n.GetPolicy().GetQuotaBytes(),
			durabilityName(n.GetPolicy().GetDefaultDurability()),
		},
	}
	if json.Valid([]byte(n.GetSpec())) {
		v.Spec = json.RawMessage(n.GetSpec())
	}
	v.Model, v.Weights = modelOf(n)
	for _, g := range n.GetGroups() {
		v.Groups = append(v.Groups, groupView{
			ID: hex.EncodeToString(g.GetId()), Kind: g.GetKind(), PageTokens: g.GetPageTokens(), KVHeads: g.GetKvHeads(),
			Layers: g.GetLayers(), Grade: g.GetGrade(), PageBytes: g.GetCellBytes() * uint64(g.GetKvHeads()) * uint64(g.GetLayers()),
		})
	}
	for _, w := range n.GetWaivers() {
		v.Waivers = append(v.Waivers, waiverView{w.GetId(), w.GetFactor(), w.GetValues(), w.GetAuthor(), w.GetReason(), instant(w.GetExpiry())})
	}
	for _, g := range n.GetGrants() {
		v.Grants = append(v.Grants, grantView{g.GetTenant(), rightName(g.GetRight())})
	}
	return v
}

func stateName(s quirev1.NamespaceState) string {
	return strings.ToLower(strings.TrimPrefix(s.String(), "NAMESPACE_STATE_"))
}

// durabilityName is the word for what a publication that names none gets.
func durabilityName(d quirev1.Durability) string {
	if d == quirev1.Durability_DURABILITY_DISK {
		return "disk"
	}
	return "memory"
}

func rightName(r quirev1.GrantRight) string {
	if r == quirev1.GrantRight_GRANT_RIGHT_READ_PUBLISH {
		return "read+publish"
	}
	return "read"
}

// modelOf reads the two factors that the tree is made of.
func modelOf(n *quirev1.Namespace) (model, weights string) {
	var spec struct {
		Model struct {
			ID      string `json:"id"`
			Weights string `json:"weights"`
		} `json:"model"`
	}
	if json.Unmarshal([]byte(n.GetSpec()), &spec) != nil {
		return "(unreadable spec)", ""
	}
	return spec.Model.ID, spec.Model.Weights
}

// list is every namespace the caller may see, retired ones included when asked for.
func (r *remote) list(ctx context.Context, tenant string, retired bool) ([]*quirev1.Namespace, error) {
	answer, err := r.namespaces.List(ctx, &quirev1.ListRequest{Tenant: tenant, IncludeRetired: retired})
	return answer.GetNamespaces(), err
}

// find is the one namespace whose id begins with prefix. Of several lives of one id, the List's is the current one.
func (r *remote) find(ctx context.Context, prefix string) (*quirev1.Namespace, error) {
	prefix = strings.ToLower(prefix)
	if !isHex(prefix) || len(prefix) > 64 {
		return nil, usagef("%q is no namespace id; write an id or the beginning of one, as 'quire ns list' shows", prefix)
	}
	all, err := r.list(ctx, "", true)
	if err != nil {
		return nil, err
	}
	var found *quirev1.Namespace
	for _, n := range all {
		if !strings.HasPrefix(hex.EncodeToString(n.GetId()), prefix) {
			continue
		}
		if found != nil {
			return nil, usagef("%q begins more than one id; write more of it", prefix)
		}
		found = n
	}
	if found == nil {
		return nil, notFoundf("no namespace begins with %q; 'quire ns list --retired' shows all", prefix)
	}
	return found, nil
}

func isHex(s string) bool {
	return s != "" && strings.Trim(s, "0123456789abcdef") == ""
}

func short(id []byte) string {
	s := hex.EncodeToString(id)
	return s[:min(len(s), shortID)]
}

// lifetimeText is a duration for people, "never" for none.
func lifetimeText(d time.Duration) string {
	if d == 0 {
		return "never"
	}
	return d.String()
}

func groupLine(g groupView) string {
	return fmt.Sprintf("%s  %s  %d tokens a page, %d heads x %d layers, %s a page (%d bytes), %s",
		g.ID[:min(len(g.ID), shortID)], g.Kind, g.PageTokens, g.KVHeads, g.Layers, bytesText(g.PageBytes), g.PageBytes, g.Grade)
}
