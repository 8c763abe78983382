package bench

import "github.com/quire-kv/quire/evict"

// State is what a server of ours holds and has moved since it began.
type State struct {
	Host TierState `json:"host"`
	Disk TierState `json:"disk"` // zero: there is none

	Pages, Evicted             uint64
	Promoted, Persisted, Moved uint64 // bytes: disk to host, host to disk, within the disk
	Corrupt                    uint64 // extents that failed the server's own verification
	DeviceBytes                uint64 // written to block devices by the process, as the kernel counts; 0: not known
}

// TierState is one tier.
type TierState struct {
	Capacity, Held int64 // Held is live, slack and metadata: never beyond Capacity
	HugePages      float64
}

func (t TierState) used() float64 {
	if t.Capacity == 0 {
		return 0
	}
	return float64(t.Held) / float64(t.Capacity)
}

func (n *node) state() State {
	st := n.store.Status()
	s := State{
		Pages: st.Totals.Pages, Evicted: st.Totals.Evicted, Promoted: st.PromotedBytes, Persisted: st.PersistedBytes,
		Moved: st.CleanedBytes, Corrupt: st.CorruptFound, DeviceBytes: deviceBytes(),
	}
	for _, t := range st.Tiers {
		x := TierState{Capacity: t.Capacity, Held: t.Live + t.Slack + t.Metadata, HugePages: t.HugePages}
		switch t.Tier {
		case evict.Host:
			s.Host = x
		case evict.Disk:
			s.Disk = x
		}
	}
	return s
}
