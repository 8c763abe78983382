package main

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
)

// instanceView is an engine instance as -o json gives it: what it last said of itself.
type instanceView struct {
	Instance      string  `json:"instance"`
	Principal     string  `json:"principal"`
	Engine        string  `json:"engine"`
	EngineVersion string  `json:"engine_version"`
	Adapter       string  `json:"adapter"`
	Provenance    string  `json:"provenance,omitempty"`
	SessionAge    float64 `json:"session_seconds,omitempty"` // absent: without a session
	ReportAge     float64 `json:"last_report_seconds"`
	Uptime        float64 `json:"uptime_seconds"`
	Lookups       uint64  `json:"lookups"`
	hitsView
	LoadedPages uint64            `json:"loaded_pages"`
	LoadedBytes uint64            `json:"loaded_bytes"`
	SavedPages  uint64            `json:"saved_pages"`
	SavedBytes  uint64            `json:"saved_bytes"`
	Failures    map[string]uint64 `json:"failures"` // by reason
	Recomputes  uint64            `json:"recompute_fallbacks"`
	Breaker     string            `json:"breaker"` // closed, open, half_open, unspecified
}

// hitsView is how many keys of those looked up could be used.
type hitsView struct {
	LookupKeys uint64   `json:"lookup_keys"`
	HitKeys    uint64   `json:"hit_keys"`
	HitRate    *float64 `json:"hit_rate"` // null: nothing was looked up
}

func hitsOf(keys, hits uint64) hitsView {
	hits = min(hits, keys) // counters of an instance are not read at one moment
	v := hitsView{LookupKeys: keys, HitKeys: hits}
	if keys > 0 {
		rate := float64(hits) / float64(keys)
		v.HitRate = &rate
	}
	return v
}

func (v hitsView) text() string { return share(v.HitKeys, v.LookupKeys-v.HitKeys) }

func instanceViews(all []*quirev1.Instance) []instanceView {
	out := []instanceView{}
	for _, i := range all {
		c := i.GetCounters()
		v := instanceView{
			Instance: i.GetInstance(), Principal: i.GetPrincipal(), Engine: i.GetEngine(), EngineVersion: i.GetEngineVersion(), Adapter: i.GetAdapter(),
			Provenance: hex.EncodeToString(i.GetProvenance()),
			SessionAge: i.GetSessionAge().AsDuration().Seconds(), ReportAge: i.GetReportAge().AsDuration().Seconds(), Uptime: i.GetUptime().AsDuration().Seconds(),
			Lookups: c.GetLookups(), hitsView: hitsOf(c.GetLookupKeys(), c.GetHitKeys()),
			LoadedPages: c.GetLoadedPages(), LoadedBytes: c.GetLoadedBytes(), SavedPages: c.GetSavedPages(), SavedBytes: c.GetSavedBytes(),
			Failures: map[string]uint64{}, Recomputes: c.GetRecomputeFallbacks(),
			Breaker: strings.ToLower(strings.TrimPrefix(i.GetBreaker().String(), "BREAKER_STATE_")),
		}
		for _, f := range c.GetFailures() {
			v.Failures[reasonText(f.GetReason())] += f.GetCount()
		}
		out = append(out, v)
	}
	return out
}

func (v *instanceView) engineText() string {
	return orDash(strings.TrimSpace(v.Engine + " " + v.EngineVersion))
}

// failuresText is "15: busy 12, corrupt 3, and 1 more": the most frequent reasons.
func (v *instanceView) failuresText() string {
	var total uint64
	var reasons []string
	for why, n := range v.Failures {
		total += n
		reasons = append(reasons, why)
	}
	if total == 0 {
		return "0"
	}
	slices.SortFunc(reasons, func(x, y string) int {
		return cmp.Or(cmp.Compare(v.Failures[y], v.Failures[x]), cmp.Compare(x, y))
	})
	var parts []string
	for i, why := range reasons {
		if i == maxShownReasons {
			parts = append(parts, fmt.Sprintf("and %d more", len(reasons)-i))
			break
		}
		parts = append(parts, why+" "+countText(v.Failures[why]))
	}
	return countText(total) + ": " + strings.Join(parts, ", ")
}

// What a table shows of instances without --instances, and of one's failures.
const (
	maxShownInstances = 12
	maxShownReasons   = 2
)

// instanceRow is an instance and where it is at work.
type instanceRow struct {
	instanceView
	namespace string
}

// rowsOf lists the instances of a tree, those first that one should look at: open breakers, then low hit rates.
func rowsOf(tree []treeModel) []instanceRow {
	var rows []instanceRow
	for _, m := range tree {
		for _, r := range m.Revisions {
			for _, l := range r.Namespaces {
				for _, i := range l.Instances {
					rows = append(rows, instanceRow{i, l.ID[:min(len(l.ID), shortID)]})
				}
			}
		}
	}
	slices.SortStableFunc(rows, func(x, y instanceRow) int {
		return cmp.Or(cmp.Compare(x.rank(), y.rank()), cmp.Compare(x.Instance, y.Instance), cmp.Compare(x.namespace, y.namespace))
	})
	return rows
}

// rank is below 0 for an open breaker, then the hit rate, then what has looked up nothing.
func (v *instanceView) rank() float64 {
	switch {
	case v.Breaker == "open":
		return -1
	case v.HitRate == nil:
		return 2
	}
	return *v.HitRate
}

// writeInstances is a table of at most most rows; 0: all.
func writeInstances(w io.Writer, rows []instanceRow, most int) error {
	t := newTable("ENGINE INSTANCE", "NAMESPACE", "ENGINE", "ADAPTER", "SESSION", "LOOKUPS", "KEYS HIT", "LOADED", "SAVED", "RECOMPUTED", "FAILURES", "BREAKER", "REPORTED").
		numbers(5, 6, 7, 8, 9)
	left := 0
	if most > 0 && len(rows) > most {
		left, rows = len(rows)-most, rows[:most]
	}
	for _, r := range rows {
		session := "-"
		if r.SessionAge > 0 {
			session = spanText(r.SessionAge)
		}
		t.row(r.Instance, r.namespace, r.engineText(), orDash(r.Adapter), session, countText(r.Lookups), r.text(),
			bytesText(r.LoadedBytes), bytesText(r.SavedBytes), countText(r.Recomputes), r.failuresText(), r.Breaker, spanText(r.ReportAge)+" ago")
	}
	if err := t.write(w); err != nil || left == 0 {
		return err
	}
	_, err := fmt.Fprintf(w, "and %d more instances; --instances shows all\n", left)
	return err
}

// spanText is a duration of two units at most: 45s, 3m20s, 5h2m, 12d3h.
func spanText(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second)).Truncate(time.Second)
	const day = 24 * time.Hour
	switch {
	case d < time.Minute:
		return d.String()
	case d < time.Hour:
		return fmt.Sprintf("%dm%ds", d/time.Minute, d%time.Minute/time.Second)
	case d < day:
		return fmt.Sprintf("%dh%dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%dd%dh", d/day, d%day/time.Hour)
}
