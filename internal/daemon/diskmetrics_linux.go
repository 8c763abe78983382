package daemon

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/quire-kv/quire/store/disk"
)

// diskMetric is one number of the disk tier itself, read at each scrape; what the store counts of it is the server's.
type diskMetric struct {
	name, help string
	kind       prometheus.ValueType
	label      string // "", kind or cause
	each       func(r *diskReading, emit func(v float64, label string))
}

// diskReading is what one scrape looks at.
type diskReading struct {
	disk.Stats
	recovery disk.Report
}

// deviceBytes is all that the device was given to write.
func (r *diskReading) deviceBytes() uint64 {
	return r.PayloadBytes + r.FrameBytes + r.JournalBytes + r.IndexBytes
}

// amplification is device bytes for each byte of pages, 0 before there is one.
func (r *diskReading) amplification() float64 {
	if r.PayloadBytes <= r.MovedBytes {
		return 0
	}
	return float64(r.deviceBytes()) / float64(r.PayloadBytes-r.MovedBytes)
}

func ofDisk(get func(*diskReading) float64) func(*diskReading, func(float64, string)) {
	return func(r *diskReading, emit func(float64, string)) { emit(get(r), "") }
}

// diskMetrics is the whole list; docs/metrics.md is held equal to it by a test.
var diskMetrics = []diskMetric{
	{"quire_disk_written_bytes_total", "Bytes that the disk tier gave its device, by kind.", prometheus.CounterValue, "kind", func(r *diskReading, emit func(float64, string)) {
		emit(float64(r.PayloadBytes), "pages")
		emit(float64(r.FrameBytes), "frames")
		emit(float64(r.JournalBytes), "journal")
		emit(float64(r.IndexBytes), "index")
	}},
	{"quire_disk_write_amplification_ratio", "Bytes given to the device for each byte of pages written, since start.", prometheus.GaugeValue, "", ofDisk((*diskReading).amplification)},
	{"quire_disk_read_bytes_total", "Bytes that the disk tier read.", prometheus.CounterValue, "", ofDisk(func(r *diskReading) float64 { return float64(r.ReadBytes) })},
	{"quire_disk_syncs_total", "Files that were synced: one for each batch and segment.", prometheus.CounterValue, "", ofDisk(func(r *diskReading) float64 { return float64(r.Syncs) })},
	{"quire_disk_segments", "Segments of the disk tier.", prometheus.GaugeValue, "", ofDisk(func(r *diskReading) float64 { return float64(r.Segments) })},
	{"quire_disk_removed_segments_total", "Segments that were removed, empty or cleaned.", prometheus.CounterValue, "", ofDisk(func(r *diskReading) float64 { return float64(r.Removed) })},
	{"quire_disk_recovery_seconds", "Time that the last start took to open the disk tier and take over what it kept.", prometheus.GaugeValue, "", ofDisk(func(r *diskReading) float64 { return r.recovery.Took.Seconds() })},
	{"quire_disk_recovered_extents", "Extents that the last start found on disk.", prometheus.GaugeValue, "", ofDisk(func(r *diskReading) float64 { return float64(r.recovery.Regions) })},
	{"quire_disk_dropped_records", "Records that the last start read and did not take over, by cause: damaged and torn ones were lost.", prometheus.GaugeValue, "cause", func(r *diskReading, emit func(float64, string)) {
		dropped := &r.recovery.Dropped
		emit(float64(dropped.Buried), "buried")
		emit(float64(dropped.Retired), "retired")
		emit(float64(dropped.Torn), "torn")
		emit(float64(dropped.Damaged), "damaged")
		emit(float64(dropped.Nameless), "nameless")
	}},
}

func (m *diskMetric) desc() *prometheus.Desc {
	var labels []string
	if m.label != "" {
		labels = []string{m.label}
	}
	return prometheus.NewDesc(m.name, m.help, labels, nil)
}

// diskCollector reads the tier at each scrape.
type diskCollector struct{ disk *disk.Driver }

// Describe lists diskMetrics.
func (c diskCollector) Describe(out chan<- *prometheus.Desc) {
	for i := range diskMetrics {
		out <- diskMetrics[i].desc()
	}
}

// Collect reads the tier once for all.
func (c diskCollector) Collect(out chan<- prometheus.Metric) {
	r := &diskReading{c.disk.Stats(), c.disk.Recovery()}
	for i := range diskMetrics {
		m := &diskMetrics[i]
		desc := m.desc()
		m.each(r, func(v float64, label string) {
			if m.label == "" {
				out <- prometheus.MustNewConstMetric(desc, m.kind, v)
			} else {
				out <- prometheus.MustNewConstMetric(desc, m.kind, v, label)
			}
		})
	}
}
