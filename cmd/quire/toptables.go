package main

import (
	"fmt"
	"math"

	"github.com/dustin/go-humanize"
)

// table is the one that is shown, sorted.
func (m *topModel) table() *topTable {
	var t *topTable
	switch m.shown {
	case topTenants:
		t = m.tenantTable()
	case topInstances:
		t = m.instanceTable()
	default:
		t = m.namespaceTable()
	}
	t.sort(m.sorts[m.shown])
	return t
}

func (m *topModel) namespaceTable() *topTable {
	t := &topTable{title: "namespaces", columns: []topColumn{
		{"NAMESPACE", false}, {"TENANT", false}, {"STATE", false}, {"PAGES", true}, {"BYTES", true}, {"KEYS/s", true}, {"HIT NOW", true},
		{"HIT EVER", true}, {"LAST WRITE", true}, {"MODEL", false},
	}}
	for _, n := range m.data.Namespaces {
		keys, now, share := math.NaN(), "-", math.NaN()
		if n.HitRate != nil {
			keys = *n.HitRate + *n.MissRate
			now, share = ratioText(*n.HitRate, keys), partOf(*n.HitRate, keys)
		}
		written, age := "never", math.Inf(-1)
		if !n.lastWrite.IsZero() {
			written, age = humanize.RelTime(n.lastWrite, m.now, "ago", "from now"), float64(n.lastWrite.Unix())
		}
		ever := float64(n.Hits + n.Misses)
		t.add(topPlain, []string{
			n.ID[:min(len(n.ID), shortID)], n.Tenant, n.State, countText(n.Pages), bytesText(n.Bytes), rateText(keys), now,
			ratioText(float64(n.Hits), ever), written, n.Model,
		}, []float64{3: float64(n.Pages), 4: float64(n.Bytes), 5: keys, 6: share, 7: partOf(float64(n.Hits), ever), 8: age, 9: 0})
	}
	return t
}

func (m *topModel) tenantTable() *topTable {
	t := &topTable{title: "tenants", columns: []topColumn{
		{"TENANT", false}, {"MEMORY", true}, {"GUARANTEED", true}, {"DISK", true}, {"GUARANTEED", true}, {"CHARGED", true}, {"QUOTA", true},
		{"PINNED", true}, {"EVICTED", true}, {"TROUBLE", false},
	}}
	for _, n := range m.data.Tenants {
		style := topPlain
		if n.Trouble != "" {
			style = topBad
		}
		t.add(style, []string{
			n.Tenant, bytesText(n.Memory), bytesText(n.Guarantee), bytesText(n.Disk), bytesText(n.DiskGuarantee), bytesText(n.Charged),
			quotaText(n.Quota), bytesText(n.Pinned), countText(n.Evicted), n.Trouble,
		}, []float64{
			1: float64(n.Memory), 2: float64(n.Guarantee), 3: float64(n.Disk), 4: float64(n.DiskGuarantee), 5: float64(n.Charged),
			6: float64(n.Quota), 7: float64(n.Pinned), 8: float64(n.Evicted), 9: 0,
		})
	}
	return t
}

func (m *topModel) instanceTable() *topTable {
	t := &topTable{title: "engine instances", columns: []topColumn{
		{"INSTANCE", false}, {"NAMESPACE", false}, {"ENGINE", false}, {"BREAKER", false}, {"KEYS HIT", true}, {"LOOKUPS", true}, {"LOADED", true},
		{"SAVED", true}, {"RECOMPUTED", true}, {"REPORTED", true}, {"FAILURES", false},
	}}
	for _, i := range m.data.Instances {
		style := topPlain
		if i.Breaker == "open" {
			style = topBad
		}
		hit := math.NaN()
		if i.HitRate != nil {
			hit = *i.HitRate
		}
		t.add(style, []string{
			i.Instance, i.Namespace[:min(len(i.Namespace), shortID)], i.engineText(), i.Breaker, i.text(), countText(i.Lookups),
			bytesText(i.LoadedBytes), bytesText(i.SavedBytes), countText(i.Recomputes), spanText(i.ReportAge) + " ago", i.failuresText(),
		}, []float64{
			4: hit, 5: float64(i.Lookups), 6: float64(i.LoadedBytes), 7: float64(i.SavedBytes), 8: float64(i.Recomputes),
			9: -i.ReportAge, 10: 0,
		})
	}
	return t
}

// rateText is a number a second, "-" where none is known.
func rateText(n float64) string {
	switch {
	case math.IsNaN(n):
		return "-"
	case n > 0 && n < 9.95:
		return fmt.Sprintf("%.1f", n)
	}
	return countText(uint64(math.Round(n)))
}

func byteRateText(n float64) string {
	if math.IsNaN(n) {
		return "-"
	}
	return bytesText(uint64(math.Round(n))) + "/s"
}

// partOf is NaN of nothing.
func partOf(part, of float64) float64 {
	if of <= 0 {
		return math.NaN()
	}
	return part / of
}

func ratioText(part, of float64) string {
	if r := partOf(part, of); !math.IsNaN(r) {
		return fmt.Sprintf("%.1f %%", 100*r)
	}
	return "-"
}
