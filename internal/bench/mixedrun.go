package bench

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/quire-kv/quire/reason"
)

// sample is the server at one moment.
type sample struct {
	at    time.Duration // since the run began
	rss   uint64
	host  float64 // of capacity
	disk  float64
	state State
}

// run keeps all callers busy for Duration and samples meanwhile.
func (m *mixing) run(ctx context.Context) ([]sample, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type end struct {
		t   *tally
		err error
	}
	ended := make(chan end, 1)
	begun := time.Now()
	go func() {
		t, err := closedLoop(ctx, m.o.InFlight, m.o.Duration, m.op)
		ended <- end{t, err}
	}()
	var all []sample
	told := time.Duration(0)
	ticker := time.NewTicker(mixedSample)
	defer ticker.Stop()
	for {
		select {
		case e := <-ended:
			return all, e.err
		case <-ticker.C:
			st, err := m.t.stateNow(ctx)
			if err != nil {
				cancel()
				<-ended
				return nil, err
			}
			s := sample{at: time.Since(begun), rss: m.t.usage.RSSBytes, host: st.Host.used(), disk: st.Disk.used(), state: st}
			all = append(all, s)
			if s.at-told >= mixedTold {
				told = s.at
				m.o.Say(m.line(all))
			}
		}
	}
}

// line says in one line how it goes.
func (m *mixing) line(all []sample) string {
	s := &all[len(all)-1]
	return fmt.Sprintf("%v: %d operations, %.1f GB read, %.1f GB written, %d wrong bytes, rss %d MiB, host %.1f %%, disk %.1f %%, %d pages, %d evicted",
		s.at.Round(time.Second), m.ops.Load(), float64(m.read.Load())/1e9, float64(m.written.Load())/1e9, m.wrong.Load(), s.rss>>20,
		100*s.host, 100*s.disk, s.state.Pages, s.state.Evicted)
}

func (m *mixing) figures(s *sheet, all []sample) {
	for k := range opKinds {
		var l latencies
		for i := range m.callers {
			l.merge(&m.callers[i].latency[k])
		}
		s.add(k.String()+"_operations", "", float64(l.n))
		s.add(k.String()+"_p50", "us", float64(l.quantile(.5))/1e3)
		s.add(k.String()+"_p99", "us", float64(l.quantile(.99))/1e3)
	}
	s.add("wrong_bytes", "B", float64(m.wrong.Load()))
	s.add("read", "GB", float64(m.read.Load())/1e9)
	s.add("written", "GB", float64(m.written.Load())/1e9)
	s.add("written_in_capacities", "disk tiers", float64(m.written.Load())/float64(m.o.DiskBytes))
	s.add("pages_refused", "", float64(m.busy.Load()))
	for _, x := range m.missed() {
		s.add("listed_and_missed_"+x.name, "", x.n)
	}
	if len(all) == 0 {
		return
	}
	tenth := max(1, len(all)/10)
	first, last := medianRSS(all[:tenth]), medianRSS(all[len(all)-tenth:])
	s.add("server_rss_first_tenth", "MiB", first/mib)
	s.add("server_rss_last_tenth", "MiB", last/mib)
	if first > 0 {
		s.add("rss_growth", "%", 100*(last-first)/first)
	}
	host, disk := 0.0, 0.0
	for i := range all {
		host, disk = max(host, all[i].host), max(disk, all[i].disk)
	}
	end := &all[len(all)-1].state
	s.add("host_most_used", "of capacity", host)
	s.add("disk_most_used", "of capacity", disk)
	s.add("pages_evicted", "", float64(end.Evicted-all[0].state.Evicted))
	s.add("promoted", "GB", float64(end.Promoted-all[0].state.Promoted)/1e9)
	s.add("persisted", "GB", float64(end.Persisted-all[0].state.Persisted)/1e9)
	s.add("moved_on_disk", "GB", float64(end.Moved-all[0].state.Moved)/1e9)
}

type missed struct {
	name string
	n    float64
}

// missed are the pages that were listed and then not served, by reason: others delete and evict meanwhile.
func (m *mixing) missed() []missed {
	var out []missed
	for r := range m.misses {
		if n := m.misses[r].Load(); n > 0 {
			out = append(out, missed{reason.Reason(r).String(), float64(n)})
		}
	}
	return out
}

func medianRSS(all []sample) float64 {
	v := make([]float64, len(all))
	for i := range all {
		v[i] = float64(all[i].rss)
	}
	slices.Sort(v)
	return median(v)
}
