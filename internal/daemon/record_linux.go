package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quire-kv/quire/store/server/record"
)

// maxRecordings is how many files one name of a recording stands for.
const maxRecordings = 1000

// startRecorder begins the recording that the config asks for. That there is no room left for one is no error: a server
// that comes back does so without. A file that cannot be written is one.
func (d *Daemon) startRecorder(deps Deps) error {
	if d.config.Record == "" {
		return nil
	}
	file, left, err := newRecording(d.config.Record, d.config.RecordLimitBytes)
	switch {
	case errors.Is(err, errNoRoomToRecord):
		d.log.Warn("nothing is recorded: earlier recordings have reached the limit", "file", d.config.Record, "limit_bytes", d.config.RecordLimitBytes)
		return nil
	case err != nil:
		return fmt.Errorf("record: %w", err)
	}
	d.recorder, err = record.New(record.Options{Clock: deps.Clock, Out: file, LimitBytes: left, Ended: func(why error) {
		d.log.Warn("the recording has ended; everything else goes on", "file", file.Name(), "reason", why)
	}})
	if err != nil {
		return errors.Join(fmt.Errorf("record: %w", err), file.Close())
	}
	d.log.Info("recording", "file", file.Name(), "limit_bytes", left)
	for _, m := range recordMetrics() {
		if err := deps.Metrics.Register(m.collector(d.recorder)); err != nil {
			return fmt.Errorf("register metrics: %w", err)
		}
	}
	return nil
}

var errNoRoomToRecord = errors.New("no room is left for a recording")

// newRecording makes the file of a recording: path, or path.1, path.2 and so on where there are earlier ones, which stay.
// left is what they leave of the limit of all together.
func newRecording(path string, limit uint64) (f *os.File, left int64, err error) {
	left = int64(min(limit, anyBytes))
	name := path
	for i := 1; i <= maxRecordings; i++ {
		info, err := os.Stat(name)
		if errors.Is(err, fs.ErrNotExist) {
			if left <= 0 {
				return nil, 0, errNoRoomToRecord
			}
			f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
			return f, left, err
		}
		if err != nil {
			return nil, 0, err
		}
		left -= info.Size()
		name = fmt.Sprintf("%s.%d", path, i)
	}
	return nil, 0, errNoRoomToRecord
}

// recordMetric is one number of the recording, read at each scrape.
type recordMetric struct {
	name, help string
	counts     bool
	get        func(record.Stats) float64
}

// recordMetrics is the whole list; docs/metrics.md is held equal to it by a test.
func recordMetrics() []recordMetric {
	return []recordMetric{
		{"quire_recording", "1 while a recording runs, 0 when it has ended.", false, func(s record.Stats) float64 {
			if s.Running {
				return 1
			}
			return 0
		}},
		{"quire_recorded_requests_total", "Requests in the recording.", true, func(s record.Stats) float64 { return float64(s.Requests) }},
		{"quire_recorded_bytes_total", "Bytes of the recording.", true, func(s record.Stats) float64 { return float64(s.Bytes) }},
		{"quire_record_dropped_calls_total", "Calls that are not in the recording whole, since the file was too slow or a request too long.", true, func(s record.Stats) float64 { return float64(s.Dropped) }},
	}
}

func (m *recordMetric) collector(r *record.Recorder) prometheus.Collector {
	read := func() float64 { return m.get(r.Stats()) }
	if m.counts {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: m.name, Help: m.help}, read)
	}
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: m.name, Help: m.help}, read)
}
