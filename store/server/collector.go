package server

import (
	"math"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store"
	"github.com/quire-kv/quire/store/core"
)

// nodeMetric is one number of store.Status or of the server's own tables, read at each scrape.
type nodeMetric struct {
	name, help string
	kind       prometheus.ValueType
	label      string // "" or one of the closed sets: tier, reason, cause, result, operation, mode, version
	each       func(r *reading, emit func(v float64, label string))
}

// reading is what one scrape looks at.
type reading struct {
	store.Status
	node *node
}

func one(get func(*reading) float64) func(*reading, func(float64, string)) {
	return func(r *reading, emit func(float64, string)) { emit(get(r), "") }
}

func perTier(get func(*store.TierStatus) float64) func(*reading, func(float64, string)) {
	return func(r *reading, emit func(float64, string)) {
		for i := range r.Tiers {
			emit(get(&r.Tiers[i]), r.Tiers[i].Tier.String())
		}
	}
}

// perTierTotal is of what the shards count by tier.
func perTierTotal(get func(*core.TierTotals) float64) func(*reading, func(float64, string)) {
	return func(r *reading, emit func(float64, string)) {
		for i := range r.Tiers {
			emit(get(&r.Totals.Tiers[r.Tiers[i].Tier]), r.Tiers[i].Tier.String())
		}
	}
}

func perReason(get func(*reading) []uint64) func(*reading, func(float64, string)) {
	return func(r *reading, emit func(float64, string)) {
		byReason := get(r)
		for _, why := range reason.All() {
			emit(float64(byReason[why]), why.String())
		}
	}
}

const (
	gauge   = prometheus.GaugeValue
	counted = prometheus.CounterValue
)

// causeNames are label values, by core.OrphanCause.
var causeNames = [core.NumOrphanCauses]string{
	core.OrphanDeleted: "deleted", core.OrphanExpired: "expired", core.OrphanCorrupt: "corrupt", core.OrphanHidden: "hidden",
	core.OrphanAborted: "aborted", core.OrphanLost: "lost",
}

// nodeMetrics is the whole list; docs/metrics.md is held equal to it by a test.
var nodeMetrics = []nodeMetric{
	{"quire_build_info", "1, labelled with the version that runs.", gauge, "version", func(r *reading, emit func(float64, string)) { emit(1, r.node.version) }},
	{"quire_uptime_seconds", "Time since the store started.", gauge, "", one(func(r *reading) float64 { return r.Uptime.Seconds() })},

	{"quire_tier_capacity_bytes", "Hard bound of a tier, metadata included.", gauge, "tier", perTier(func(t *store.TierStatus) float64 { return float64(t.Capacity) })},
	{"quire_tier_live_bytes", "Bytes of a tier that extents ask for.", gauge, "tier", perTier(func(t *store.TierStatus) float64 { return float64(t.Live) })},
	{"quire_tier_slack_bytes", "Bytes of a tier lost to rounding, free slots and memory kept ready.", gauge, "tier", perTier(func(t *store.TierStatus) float64 { return float64(t.Slack) })},
	{"quire_tier_metadata_bytes", "Bytes that a tier needs for itself.", gauge, "tier", perTier(func(t *store.TierStatus) float64 { return float64(t.Metadata) })},
	{"quire_tier_writable", "1 while the tier takes bytes, 0 while it is degraded.", gauge, "tier", perTier(func(t *store.TierStatus) float64 { return truth(t.Writable) })},
	{"quire_tier_huge_pages_ratio", "Share of a tier's resident memory backed by huge pages, where known.", gauge, "tier", perTier(func(t *store.TierStatus) float64 { return t.HugePages })},
	{"quire_tier_water_level", "Score of a tier's next victim.", gauge, "tier", perTier(func(t *store.TierStatus) float64 { return float64(t.WaterLevel) })},

	{"quire_tier_load_bytes_per_second", "Rate at which pages are read from a tier into memory to be served, while any are; 0 where it was not measured.", gauge, "tier", perTier(func(t *store.TierStatus) float64 { return t.LoadRate })},

	{"quire_tier_extents", "Committed copies of extents in a tier.", gauge, "tier", perTierTotal(func(t *core.TierTotals) float64 { return float64(t.Extents) })},
	{"quire_tier_evicted_pages_total", "Pages that left a tier for room; they may have a copy in another.", counted, "tier", perTierTotal(func(t *core.TierTotals) float64 { return float64(t.Evicted) })},

	{"quire_tier_not_worth_extents_total", "Copies of extents that a tier did not take from another, or dropped once they were read, since all that could go is worth more.", counted, "tier", perTierTotal(func(t *core.TierTotals) float64 { return float64(t.NotWorth) })},

	{"quire_eviction_used_flops_total", "FLOPs of all uses of pages: what recomputing them would have cost. This and the following are estimates from a sample.", counted, "", one(func(r *reading) float64 { return r.Eviction.Used })},
	{"quire_eviction_content_flops_total", "FLOPs of uses of pages that were seen before: what a store without end would have saved.", counted, "", one(func(r *reading) float64 { return r.Eviction.Content })},
	{"quire_eviction_saved_flops_total", "FLOPs of uses of pages that were there.", counted, "", one(func(r *reading) float64 { return r.Eviction.Saved })},
	{"quire_eviction_mode_saved_flops_total", "FLOPs that a store of the same size would have saved, were its policy always in this mode.", counted, "mode", func(r *reading, emit func(float64, string)) {
		for _, m := range r.Eviction.Modes {
			emit(m.Saved, m.Name)
		}
	}},
	{"quire_eviction_mode_shards", "Shards whose policy is in this mode.", gauge, "mode", func(r *reading, emit func(float64, string)) {
		for _, m := range r.Eviction.Modes {
			emit(float64(m.Shards), m.Name)
		}
	}},

	{"quire_pages", "Pages with a committed extent.", gauge, "", one(func(r *reading) float64 { return float64(r.Totals.Pages) })},
	{"quire_extents", "Committed extents, each copy counted.", gauge, "", one(func(r *reading) float64 { return float64(r.Totals.Extents) })},
	{"quire_metadata_bytes", "Bytes of index, records, leases and policy.", gauge, "", one(func(r *reading) float64 { return float64(r.Totals.MetadataBytes) })},
	{"quire_metadata_capacity_bytes", "Bound of these bytes.", gauge, "", one(func(r *reading) float64 { return float64(r.MetadataCapacity) })},
	{"quire_pinned_bytes", "Bytes that leases and pins keep from eviction.", gauge, "", one(func(r *reading) float64 { return float64(r.Totals.PinnedBytes) })},
	{"quire_read_leases", "Live read leases.", gauge, "", one(func(r *reading) float64 { return float64(r.Totals.ReadLeases) })},
	{"quire_publications", "Live publication leases.", gauge, "", one(func(r *reading) float64 { return float64(r.Totals.Publications) })},
	{"quire_sessions", "Attached sessions.", gauge, "", one(func(r *reading) float64 { return float64(r.Sessions) })},
	{"quire_instances", "Engine instances whose reports are kept.", gauge, "", one(func(r *reading) float64 { all, _ := r.node.instances.count(); return float64(all) })},
	{"quire_instances_breaker_open", "Engine instances that said last that they do not call the store, after failures.", gauge, "", one(func(r *reading) float64 { _, open := r.node.instances.count(); return float64(open) })},
	{"quire_namespaces", "Namespaces that the node was told of.", gauge, "", one(func(r *reading) float64 { return float64(r.node.spaces.count()) })},
	{"quire_namespaces_never_hit", "Namespaces that are written to and looked up, and of which nothing was ever found.", gauge, "", one(func(r *reading) float64 { return float64(r.NeverHit) })},
	{"quire_requests_in_flight", "Calls being answered, long-lived streams apart.", gauge, "", one(func(r *reading) float64 { return float64(r.node.inflight.count()) })},
	{"quire_fetches_in_flight", "Fetches whose pages are still pinned.", gauge, "", one(func(r *reading) float64 { c, _ := r.node.fetches.total(); return float64(c) })},
	{"quire_fetch_pinned_bytes", "Upper bound of the bytes that these fetches pin.", gauge, "", one(func(r *reading) float64 { _, b := r.node.fetches.total(); return float64(b) })},

	{"quire_granted_pages_total", "Pages granted to publications.", counted, "", one(func(r *reading) float64 { return float64(r.Totals.Granted) })},
	{"quire_committed_pages_total", "Pages made visible.", counted, "", one(func(r *reading) float64 { return float64(r.Totals.CommittedPages) })},
	{"quire_refused_pages_total", "Pages that Begin or Commit did not take, by reason.", counted, "reason", perReason(func(r *reading) []uint64 { return r.Totals.RefusedPages[:] })},
	{"quire_not_worth_pages_total", "Pages that Begin did not take, since all that could go from the full tier is worth more; not among the refused.", counted, "", one(func(r *reading) float64 { return float64(r.Totals.NotWorth) })},
	{"quire_evicted_pages_total", "Pages whose last copy was evicted for room.", counted, "", one(func(r *reading) float64 { return float64(r.Totals.Evicted) })},
	{"quire_removed_total", "Pages and extents removed for other reasons than room, by reason.", counted, "reason", perReason(func(r *reading) []uint64 { return r.Totals.Removed[:] })},
	{"quire_orphaned_pages_total", "Pages whose parent went, by cause.", counted, "cause", func(r *reading, emit func(float64, string)) {
		for cause, n := range r.Totals.Orphaned {
			emit(float64(n), causeNames[cause])
		}
	}},
	{"quire_orphaned_bytes_total", "Bytes of pages that nobody can be served any more since one before them went, all that follow counted, by cause.", counted, "cause", func(r *reading, emit func(float64, string)) {
		for cause, n := range r.Totals.OrphanedBytes {
			emit(float64(n), causeNames[cause])
		}
	}},
	{"quire_leases_expired_total", "Leases that ran out.", counted, "", one(func(r *reading) float64 { return float64(r.Totals.LeaseTTLEnded) })},
	{"quire_store_read_bytes_total", "Payload bytes read and verified.", counted, "", one(func(r *reading) float64 { return float64(r.ReadBytes) })},
	{"quire_store_written_bytes_total", "Payload bytes written into grants.", counted, "", one(func(r *reading) float64 { return float64(r.WrittenBytes) })},
	{"quire_promoted_bytes_total", "Bytes copied from the disk tier into host memory, to be read.", counted, "", one(func(r *reading) float64 { return float64(r.PromotedBytes) })},
	{"quire_persisted_bytes_total", "Bytes copied from host memory to the disk tier.", counted, "", one(func(r *reading) float64 { return float64(r.PersistedBytes) })},
	{"quire_write_behind_pages", "Pages in memory that wait to be written to the disk tier.", gauge, "", one(func(r *reading) float64 { return float64(r.Totals.Behind) })},
	{"quire_write_behind_refused_pages_total", "Pages that are not written behind, since too many waited.", counted, "", one(func(r *reading) float64 { return float64(r.Totals.BehindRefused) })},
	{"quire_cleaned_bytes_total", "Bytes moved within the disk tier so that their segments could be freed.", counted, "", one(func(r *reading) float64 { return float64(r.CleanedBytes) })},
	{"quire_disk_errors_total", "Reads and writes of extents that the disk tier failed.", counted, "operation", func(r *reading, emit func(float64, string)) {
		emit(float64(r.DiskReadErrors), "read")
		emit(float64(r.DiskWriteErrors), "write")
	}},
	{"quire_scrub_running", "1 while what is stored is re-read and verified.", gauge, "", one(func(r *reading) float64 { return truth(r.node.scrubs.running.Load()) })},
	{"quire_scrub_remaining_bytes", "What the running scrub has still to read, 0 when none runs.", gauge, "", one(func(r *reading) float64 { return float64(r.node.scrubs.left.Load()) })},
	{"quire_scrub_verified_bytes_total", "Bytes that scrubs re-read and found sound.", counted, "", one(func(r *reading) float64 { return float64(r.node.scrubs.verified.Load()) })},
	{"quire_scrub_corrupt_extents_total", "Extents that scrubs found corrupt and dropped.", counted, "", one(func(r *reading) float64 { return float64(r.node.scrubs.corrupt.Load()) })},
	{"quire_corrupt_extents_total", "Extents that failed the node's own verification.", counted, "", one(func(r *reading) float64 { return float64(r.CorruptFound) })},
	{"quire_corrupt_reports_total", "Clients' reports of corruption, confirmed or not.", counted, "result", func(r *reading, emit func(float64, string)) {
		var unconfirmed uint64
		for _, n := range r.ReportsUnconfirmed {
			unconfirmed += n
		}
		emit(float64(r.ReportsConfirmed), "confirmed")
		emit(float64(unconfirmed), "unconfirmed")
	}},
	{"quire_divergent_publications_total", "Publications whose bytes differ from what is stored.", counted, "", one(func(r *reading) float64 { return float64(r.Divergent) })},
}

var victimScores = prometheus.NewDesc("quire_tier_victim_score", "Scores of the pages that left a tier for room; those that were due to go anyway count as 0.", []string{"tier"}, nil)

func scoresOf(s *core.Scores, tier string) prometheus.Metric {
	below, n := map[float64]uint64{}, uint64(0)
	for i, c := range s.Counts {
		if n += c; i < len(s.Counts)-1 {
			below[math.Pow10(core.LeastScore+i)] = n
		}
	}
	return prometheus.MustNewConstHistogram(victimScores, n, s.Sum, below, tier)
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func (m *nodeMetric) desc() *prometheus.Desc {
	var labels []string
	if m.label != "" {
		labels = []string{m.label}
	}
	return prometheus.NewDesc(m.name, m.help, labels, nil)
}

// nodeCollector reads the store at each scrape.
type nodeCollector struct{ node *node }

// Describe lists nodeMetrics.
func (c nodeCollector) Describe(out chan<- *prometheus.Desc) {
	for i := range nodeMetrics {
		out <- nodeMetrics[i].desc()
	}
	out <- victimScores
}

// Collect takes one Status for all.
func (c nodeCollector) Collect(out chan<- prometheus.Metric) {
	r := &reading{c.node.store.Status(), c.node}
	for i := range nodeMetrics {
		m := &nodeMetrics[i]
		desc := m.desc()
		m.each(r, func(v float64, label string) {
			if m.label == "" {
				out <- prometheus.MustNewConstMetric(desc, m.kind, v)
			} else {
				out <- prometheus.MustNewConstMetric(desc, m.kind, v, label)
			}
		})
	}
	for i := range r.Tiers {
		t := r.Tiers[i].Tier
		out <- scoresOf(&r.Totals.Tiers[t].Victims, t.String())
	}
}
