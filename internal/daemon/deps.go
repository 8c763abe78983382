package daemon

import (
	"io"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/quire-kv/quire/internal/clock"
)

// Deps are the seams of a daemon. Zero values are defaults.
type Deps struct {
	Logger  *slog.Logger         // default: nothing is logged
	Clock   clock.Clock          // default clock.System
	Metrics *prometheus.Registry // default a new one with the Go runtime's and the process's
	Version string
}

func (d *Deps) fill() {
	if d.Logger == nil {
		d.Logger = slog.New(slog.DiscardHandler)
	}
	if d.Clock == nil {
		d.Clock = clock.System()
	}
	if d.Metrics == nil {
		d.Metrics = prometheus.NewRegistry()
		d.Metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	}
}

// NewLogger is the logger that a validated config asks for, writing to w.
func NewLogger(c *Config, w io.Writer) *slog.Logger {
	var level slog.Level
	if level.UnmarshalText([]byte(c.LogLevel)) != nil {
		level = slog.LevelInfo
	}
	options := &slog.HandlerOptions{Level: level}
	if c.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}
