package core

import "github.com/quire-kv/quire/evict"

// holding is what the policy was told that a tier holds of this shard.
type holding struct{ bytes, pages uint64 }

// resizeShare is the part by which a tier's share must have changed before the policy is told again.
const resizeShare = 64

// resize tells the policy what the tiers hold, where that has changed by a 64th.
func (s *Shard) resize() {
	for t := firstNear; t < evict.NumTiers; t++ {
		if told := &s.told[t]; changed(told.bytes, s.live[t]) || changed(told.pages, s.near[t]) {
			s.tellSize(t)
		}
	}
}

func changed(told, now uint64) bool {
	return max(told, now)-min(told, now) > told/resizeShare
}

func (s *Shard) tellSize(t evict.Tier) {
	s.told[t] = holding{s.live[t], s.near[t]}
	s.o.Policy.Resize(t, s.live[t], s.near[t])
}
