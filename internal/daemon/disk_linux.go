package daemon

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quire-kv/quire/store"
	"github.com/quire-kv/quire/store/disk"
)

// batchShare is the part of memory that the disk tier has in hand at most, where its device answers nothing.
const batchShare = 8

func (d *Daemon) openDisk(ctx context.Context, deps Deps) (*disk.Driver, error) {
	driver, err := disk.New(ctx, disk.Options{
		Dir: filepath.Join(d.config.DataDir, pagesDir), CapacityBytes: int64(d.config.DiskBytes),
		BatchBytes: d.host.Usage().Capacity / batchShare, Clock: deps.Clock, Logger: deps.Logger,
	})
	if err != nil {
		return nil, fmt.Errorf("open the disk tier: %w", err)
	}
	return driver, nil
}

// recover takes over what the disk tier kept. The store knows all namespaces by now: pages of others are dropped.
func (d *Daemon) recover(ctx context.Context, metrics *prometheus.Registry) error {
	if d.disk == nil {
		return nil
	}
	found, err := d.store.Recover(ctx)
	if err != nil {
		return fmt.Errorf("recover the disk tier: %w", err)
	}
	if err := metrics.Register(diskCollector{d.disk}); err != nil {
		return fmt.Errorf("register metrics: %w", err)
	}
	d.tellRecovery(&found)
	return nil
}

// maxToldFaults bounds the lines of the log on damage; quire doctor tells of all.
const maxToldFaults = 10

func (d *Daemon) tellRecovery(found *store.Recovery) {
	r := d.disk.Recovery()
	d.log.Info("recovered the disk tier", "extents", found.Extents, "dropped", found.Dropped, "segments", r.Segments,
		"scanned_segments", r.Scanned, "buried", r.Dropped.Buried, "retired", r.Dropped.Retired, "torn", r.Dropped.Torn,
		"damaged", r.Dropped.Damaged, "nameless", r.Dropped.Nameless, "took", r.Took.String())
	if r.Rebuilt != "" {
		d.log.Warn("the index of the disk tier was rebuilt from its segments", "cause", r.Rebuilt)
	}
	for i := range r.Faults {
		if i == maxToldFaults {
			d.log.Warn("more of the disk tier is damaged", "faults", len(r.Faults)-i)
			break
		}
		d.log.Warn("the disk tier is damaged", "detail", r.Faults[i].Error())
	}
}
