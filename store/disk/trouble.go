package disk

import (
	"errors"
	"fmt"
	"time"

	"github.com/quire-kv/quire/store/tier"
)

// The first probe of a tier in trouble comes after firstProbe; each that fails doubles that, up to lastProbe.
const (
	firstProbe = time.Second
	lastProbe  = time.Minute
	probeName  = "PROBE"
)

// fail ends all changes until the next start: a sync failed, or the index, and nobody knows what is durable. Reads go on.
// It answers the error for those who wait.
func (d *Driver) fail(err error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fatal == nil {
		d.fatal = fmt.Errorf("%w until a restart: %w", tier.ErrDegraded, err)
		d.o.Logger.Error("disk_tier_failed", "error", err)
	}
	return d.fatal
}

// failed is what fail was told first.
func (d *Driver) failed() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.fatal
}

// trouble stops writes until a probe succeeds: what failed is known, and the device may come back.
func (d *Driver) trouble(err error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	err = fmt.Errorf("%w: %w", tier.ErrDegraded, err)
	if d.degraded == nil {
		d.o.Logger.Error("disk_tier_degraded", "error", err)
	}
	d.degraded = err
	d.probeSoon()
	return err
}

// doom keeps segments that could not be removed for the probe to try again.
func (d *Driver) doom(segments []*segment) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(segments) > 0 {
		d.writer.doomed = append(d.writer.doomed, segments...)
		d.probeSoon()
	}
}

// probeSoon sets the timer of the next probe, if none runs. Under mu.
func (d *Driver) probeSoon() {
	if d.stopProbe != nil || d.closed {
		return
	}
	d.probeAfter = min(max(2*d.probeAfter, firstProbe), lastProbe)
	d.stopProbe = d.o.Clock.AfterFunc(d.probeAfter, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.stopProbe = nil
		d.writer.wants.probe = true
		d.writer.wake()
	})
}

// probe tries whether the device takes bytes and removals again.
func (d *Driver) probe() {
	d.mu.Lock()
	doomed := d.writer.doomed
	d.writer.doomed = nil
	degraded := d.degraded
	d.mu.Unlock()
	if d.failed() != nil {
		return
	}
	d.removeSegments(doomed)
	var err error
	if degraded != nil {
		err = d.tryDevice()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		d.degraded = fmt.Errorf("%w: %w", tier.ErrDegraded, err)
		d.probeSoon()
		return
	}
	if degraded != nil {
		d.degraded = nil
		d.o.Logger.Info("disk_tier_back")
	}
	if len(d.writer.doomed) == 0 {
		d.probeAfter = 0
	}
}

// tryDevice makes a file as a segment is made, as large if that keeps within the bound, syncs it and removes it.
func (d *Driver) tryDevice() (err error) {
	d.mu.Lock()
	bytes := min(d.sizes.segment, max(d.room(0)&^(blockBytes-1), MinSegmentBytes))
	d.mu.Unlock()
	f, err := d.makeFile(probeName, label{kind: fileSegment, bytes: bytes})
	if err == nil {
		err = errors.Join(f.flush(), f.Close())
	}
	return errors.Join(err, d.dir.remove(probeName), d.syncDir())
}
