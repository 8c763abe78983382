package main

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
)

type statusView struct {
	Version          string     `json:"version"`
	BootID           string     `json:"boot_id"`
	UptimeSeconds    float64    `json:"uptime_seconds"`
	Pages            uint64     `json:"pages"`
	Extents          uint64     `json:"extents"`
	ReadLeases       uint64     `json:"read_leases"`
	Publications     uint64     `json:"publications"`
	Sessions         uint64     `json:"sessions"`
	PinnedBytes      uint64     `json:"pinned_bytes"`
	MetadataBytes    uint64     `json:"metadata_bytes"`
	MetadataCapacity uint64     `json:"metadata_capacity_bytes"`
	Tiers            []tierView `json:"tiers"`

	Eviction *evictionView `json:"eviction"` // null: its policy knows nothing of other choices
}

// evictionView is what eviction knows of itself, since the start.
type evictionView struct {
	Used    float64    `json:"used_flops"`    // of all uses of pages
	Content float64    `json:"content_flops"` // of uses of pages that were seen before
	Saved   float64    `json:"saved_flops"`   // of uses of pages that were there
	Modes   []modeView `json:"modes"`
}

type modeView struct {
	Mode   string  `json:"mode"`
	Shards uint32  `json:"shards"`
	Saved  float64 `json:"saved_flops"`
}

func evictionViewOf(e *quirev1.EvictionStatus) *evictionView {
	if e == nil {
		return nil
	}
	v := &evictionView{e.GetUsedFlops(), e.GetContentFlops(), e.GetSavedFlops(), []modeView{}}
	for _, m := range e.GetModes() {
		v.Modes = append(v.Modes, modeView{m.GetMode(), m.GetShards(), m.GetSavedFlops()})
	}
	return v
}

// text is one line for people; "" where there is nothing to tell yet.
func (e *evictionView) text() string {
	if e == nil || e.Content <= 0 {
		return ""
	}
	text := fmt.Sprintf("saves %s of what can be", percentText(e.Saved/e.Content))
	var modes []string
	for _, m := range e.Modes {
		if m.Shards > 0 {
			modes = append(modes, fmt.Sprintf("%s in %d", m.Mode, m.Shards))
		}
		if m.Mode == "lru" && m.Saved > 0 {
			text += fmt.Sprintf(", %+.0f %% against LRU", 100*(e.Saved/m.Saved-1))
		}
	}
	return text + "   shards by mode: " + strings.Join(modes, ", ")
}

type tierView struct {
	Tier       string  `json:"tier"`
	Capacity   uint64  `json:"capacity_bytes"`
	Live       uint64  `json:"live_bytes"`
	Slack      uint64  `json:"slack_bytes"`
	Metadata   uint64  `json:"metadata_bytes"`
	Extents    uint64  `json:"extents"`
	Evicted    uint64  `json:"evicted_pages"` // for room, since the start
	Writable   bool    `json:"writable"`
	WaterLevel float64 `json:"water_level"`
	Trouble    string  `json:"trouble,omitempty"` // what keeps it from being writable, or is about to
}

func (a *app) statusCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "status",
		Short:   "Show the server at a glance: tiers, pages, leases",
		Example: "  quire status",
		Args:    exactly(),
		RunE: a.action(func(ctx context.Context, _ []string) error {
			return a.with(ctx, func(ctx context.Context, r *remote) error {
				s, err := r.admin.Status(ctx, &quirev1.StatusRequest{})
				if err != nil {
					return err
				}
				return a.printStatus(s)
			})
		}),
	}
}

func statusViewOf(s *quirev1.StatusResponse) statusView {
	v := statusView{
		Version: s.GetVersion(), BootID: hex.EncodeToString(s.GetBootId()), UptimeSeconds: s.GetUptime().AsDuration().Seconds(),
		Pages: s.GetPages(), Extents: s.GetExtents(), ReadLeases: s.GetReadLeases(), Publications: s.GetPublications(),
		Sessions: s.GetSessions(), PinnedBytes: s.GetPinnedBytes(), MetadataBytes: s.GetMetadataBytes(),
		MetadataCapacity: s.GetMetadataCapacityBytes(), Tiers: []tierView{}, Eviction: evictionViewOf(s.GetEviction()),
	}
	for _, t := range s.GetTiers() {
		v.Tiers = append(v.Tiers, tierView{
			t.GetTier(), t.GetCapacityBytes(), t.GetLiveBytes(), t.GetSlackBytes(), t.GetMetadataBytes(), t.GetExtents(), t.GetEvictedPages(),
			t.GetWritable(), t.GetWaterLevel(), t.GetTrouble(),
		})
	}
	return v
}

func (a *app) printStatus(s *quirev1.StatusResponse) error {
	v := statusViewOf(s)
	return a.print(v, func(w io.Writer) error {
		err := pairs(w,
			[2]string{"server", a.server + ", version " + v.Version + ", up " + s.GetUptime().AsDuration().Round(time.Second).String()},
			[2]string{"pages", countText(v.Pages) + " in " + countText(v.Extents) + " extents"},
			[2]string{"leases", fmt.Sprintf("%d read, %d publications, %d sessions, %s pinned", v.ReadLeases, v.Publications, v.Sessions, bytesText(v.PinnedBytes))},
			[2]string{"metadata", bytesText(v.MetadataBytes) + " of " + quotaText(v.MetadataCapacity)},
		)
		if err != nil {
			return err
		}
		t := newTable("TIER", "CAPACITY", "LIVE", "SLACK", "METADATA", "WRITABLE", "WATER LEVEL").numbers(1, 2, 3, 4, 6)
		for _, x := range v.Tiers {
			t.row(x.Tier, bytesText(x.Capacity), bytesText(x.Live), bytesText(x.Slack), bytesText(x.Metadata), fmt.Sprint(x.Writable), fmt.Sprintf("%.3g", x.WaterLevel))
		}
		if err := t.write(w); err != nil {
			return err
		}
		for _, x := range v.Tiers {
			if x.Trouble != "" {
				fmt.Fprintf(w, "\n%s: %s\n", x.Tier, x.Trouble)
			}
		}
		return nil
	})
}
