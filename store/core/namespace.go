package core

import "slices"

// namespaceChanged replaces what is known of a namespace's epoch. Lives go one way: a retired epoch stays so.
func (s *Shard) namespaceChanged(ev *NamespaceChanged) {
	st := ev.Namespace
	ep := s.epochs.byKey[epochKey{st.ID, st.Epoch}]
	if ep == nil {
		ep = s.epochs.add(st)
	} else {
		st.Life, st.Tenant = max(st.Life, ep.state.Life), ep.state.Tenant
	}
	was := ep.state.Life
	st.Accepts = slices.Clone(st.Accepts)
	ep.state = st
	if ep.lineages.rejudge(st.Accepts) {
		s.sweep.request() // pages learn that they are hidden, or no longer are
	}
	if st.Life == Retired && was != Retired {
		s.retire(ep)
	}
	s.epochs.forget()
}

// retire ends all that anyone holds of an epoch. Its pages are out of reach already; the sweep gives their bytes back.
func (s *Shard) retire(ep *epoch) {
	s.endTenures(func(n *tenure) bool { return n.ep == ep })
	for _, l := range s.operators {
		for at, e := range l.pages {
			if e.ref != (PageRef{}) && s.families.at(e.key.family).ep == ep {
				s.letGo(l, int32(at))
			}
		}
	}
	s.operators = slices.DeleteFunc(s.operators, func(l *lease) bool { return len(l.at) == 0 })
	if ep.families > 0 {
		s.sweep.request()
	}
}
