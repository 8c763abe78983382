package core

import "github.com/quire-kv/quire/evict"

// holding is what the policy was told that a tier holds of this shard.
type holding struct{ bytes, pages uint64 }

// resizeShare is the part by which a tier's share must have changed before the policy is told again.
const resizeShare = 64

// resize tells the policy what the tiers hold, where that has changed by a 64th. It waits while places are being found for
// grants: those count already, and what goes in their stead may not be gone.
func (s *Shard) resize() {
	if len(s.allocs) > 0 {
		return
	}
	for t := firstNear; t < evict.NumTiers; t++ {
		if told := &s.told[t]; changed(told.bytes, s.live[t]) || changed(told.pages, s.near[t]) {
			*told = holding{s.live[t], s.near[t]}
			s.o.Policy.Resize(t, told.bytes, told.pages)
		}
	}
}

func changed(told, now uint64) bool {
	return max(told, now)-min(told, now) > told/resizeShare
}
