package server

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/namespace"
	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/core"
	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/rpc"
)

const (
	// reportEvery is how often an instance is asked to report: a fraction of how long people wait for a number to move.
	reportEvery = 15 * time.Second
	// instanceKept is how long one is shown that reports no more though its session lives, or that has none.
	instanceKept = 20 * reportEvery
)

// instances keeps the last report of every engine instance.
//
//	none ──Report──> kept ──end of its session, or no report for instanceKept──> none
type instances struct {
	clock clock.Clock
	most  int // per tenant of who reports

	mu       sync.Mutex // guards what follows
	m        map[instanceKey]instance
	byTenant map[string]int
}

// lifeKey is one life of a namespace.
type lifeKey struct {
	id    page.NamespaceID
	epoch page.Epoch
}

// instanceKey tells processes apart, also those that were given one name.
type instanceKey struct {
	life      lifeKey
	principal core.Principal
	session   core.Session // 0: none
	name      string
}

// instance is what was reported, and when. What it points to is never changed.
type instance struct {
	tenant, principal string // who reports
	report            *quirev1.Instance
	session           bool
	attached          clock.Instant // the session
	at                clock.Instant // the report
}

func newInstances(c clock.Clock, most int) *instances {
	return &instances{clock: c, most: most, m: map[instanceKey]instance{}, byTenant: map[string]int{}}
}

// put keeps a report in place of the one before. It refuses one instance more than a tenant may have: those that are
// kept stay, so nobody is driven out by names made up.
func (t *instances) put(k instanceKey, i instance) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	i.at = t.clock.Now()
	if _, known := t.m[k]; !known {
		t.sweep()
		if t.byTenant[i.tenant] >= t.most {
			return rpc.Errorf(reason.LimitExceeded, "more than %d instances of one tenant report", t.most)
		}
		t.byTenant[i.tenant]++
	}
	t.m[k] = i
	return nil
}

// forget drops what a session reported.
func (t *instances) forget(s core.Session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.drop(func(k instanceKey, _ instance) bool { return k.session == s })
}

// sweep drops what nobody renews. The caller holds mu.
func (t *instances) sweep() {
	now := t.clock.Now()
	t.drop(func(_ instanceKey, i instance) bool { return now.Sub(i.at) > instanceKept })
}

// drop runs under mu.
func (t *instances) drop(gone func(instanceKey, instance) bool) {
	maps.DeleteFunc(t.m, func(k instanceKey, i instance) bool {
		if !gone(k, i) {
			return false
		}
		if t.byTenant[i.tenant]--; t.byTenant[i.tenant] == 0 {
			delete(t.byTenant, i.tenant)
		}
		return true
	})
}

// count is the number of instances kept, and of those whose breaker is open.
func (t *instances) count() (all, open int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sweep()
	for _, i := range t.m {
		if i.report.GetBreaker() == quirev1.BreakerState_BREAKER_STATE_OPEN {
			open++
		}
	}
	return len(t.m), open
}

// all is every instance as of now.
func (t *instances) all() map[lifeKey][]instance {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sweep()
	out := map[lifeKey][]instance{}
	for k, i := range t.m {
		out[k.life] = append(out[k.life], i)
	}
	return out
}

// seen is what one caller may see of a namespace's instances, by name: all of them in its own tenant's namespace, of
// another's only its own tenant's.
func (t *instances) seen(who namespace.Principal, ns *namespace.Namespace, all map[lifeKey][]instance) []*quirev1.Instance {
	now := t.clock.Now()
	var out []*quirev1.Instance
	for _, i := range all[lifeKey{ns.ID, ns.Epoch}] {
		if who.Role == namespace.RoleOperator || who.Tenant == ns.Tenant || who.Tenant == i.tenant {
			out = append(out, i.toProto(now))
		}
	}
	slices.SortFunc(out, func(a, b *quirev1.Instance) int {
		return cmp.Or(cmp.Compare(a.GetInstance(), b.GetInstance()), cmp.Compare(a.GetPrincipal(), b.GetPrincipal()),
			cmp.Compare(b.GetSessionAge().AsDuration(), a.GetSessionAge().AsDuration()))
	})
	return out
}

// toProto is i with its ages at now.
func (i *instance) toProto(now clock.Instant) *quirev1.Instance {
	r := i.report
	out := &quirev1.Instance{
		Instance: r.GetInstance(), Principal: i.principal, Engine: r.GetEngine(), EngineVersion: r.GetEngineVersion(), Adapter: r.GetAdapter(),
		Provenance: r.GetProvenance(), ReportAge: durationpb.New(now.Sub(i.at)), Uptime: r.GetUptime(), Counters: r.GetCounters(), Breaker: r.GetBreaker(),
	}
	if i.session {
		out.SessionAge = durationpb.New(now.Sub(i.attached))
	}
	return out
}
