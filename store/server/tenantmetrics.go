package server

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/store/core"
)

// tenantMetric is a number of each tenant that has a guarantee. Others are not labels: only operators give guarantees,
// and to 255 tenants at most (namespace.MaxGuarantees), while anybody's token may name a tenant.
type tenantMetric struct {
	name, help string
	kind       prometheus.ValueType
	perTier    bool
	of         func(u *core.TenantUsage, t evict.Tier) float64
}

// tenantMetrics are all of them; docs/metrics.md is held equal to it by a test.
var tenantMetrics = []tenantMetric{
	{"quire_tenant_guarantee_bytes", "Bytes of a tier that a tenant is guaranteed.", gauge, true, func(u *core.TenantUsage, t evict.Tier) float64 { return float64(u.Guarantee[t]) }},
	{"quire_tenant_live_bytes", "Bytes that the pages of a tenant take in a tier of which it is guaranteed some.", gauge, true, func(u *core.TenantUsage, t evict.Tier) float64 { return float64(u.Live[t]) }},
	{"quire_tenant_evicted_pages_total", "Pages of a tenant with a guarantee whose last copy was evicted for room.", counted, false, func(u *core.TenantUsage, _ evict.Tier) float64 { return float64(u.Evicted) }},
}

func (m *tenantMetric) desc() *prometheus.Desc {
	labels := []string{"tenant"}
	if m.perTier {
		labels = append(labels, "tier")
	}
	return prometheus.NewDesc(m.name, m.help, labels, nil)
}

// tenantCollector reads what tenants hold at each scrape.
type tenantCollector struct{ node *node }

// Describe lists tenantMetrics.
func (c tenantCollector) Describe(out chan<- *prometheus.Desc) {
	for i := range tenantMetrics {
		out <- tenantMetrics[i].desc()
	}
}

// Collect reads each tenant once.
func (c tenantCollector) Collect(out chan<- prometheus.Metric) {
	for _, r := range c.node.registry.Tenants() {
		u := c.node.store.TenantUsage(r.Name)
		if u.Guarantee == [evict.NumTiers]uint64{} {
			continue
		}
		for i := range tenantMetrics {
			m := &tenantMetrics[i]
			desc := m.desc()
			if !m.perTier {
				out <- prometheus.MustNewConstMetric(desc, m.kind, m.of(&u, 0), r.Name)
				continue
			}
			for t := range evict.NumTiers {
				if u.Guarantee[t] > 0 {
					out <- prometheus.MustNewConstMetric(desc, m.kind, m.of(&u, t), r.Name, t.String())
				}
			}
		}
	}
}
