package demo

import (
	"fmt"
	"io"
	"strings"

	"github.com/dustin/go-humanize"
)

// Write shows the report to people.
func (r *Report) Write(out io.Writer) error {
	w := &lines{w: out}
	w.add("trace", "%s", r.Trace)
	w.add("model", "%s, %d tokens a page; payload scaled 1:%d (%s a page for %s), savings computed for the real shape", r.Model.Name,
		r.Model.PageTokens, r.Model.PayloadScale, humanize.IBytes(r.Model.StoredPageBytes), humanize.IBytes(r.Model.RealPageBytes))
	p := &r.Replay
	w.add("requests", "%s", humanize.Comma(int64(p.Requests)))
	w.add("pages looked up", "%s", humanize.Comma(int64(p.PagesLookedUp)))
	unbounded := ""
	if p.PagesSeenBefore > 0 {
		unbounded = fmt.Sprintf(" (a store without bound: %.1f %% of pages)", 100*share(p.PagesSeenBefore, p.PagesLookedUp))
	}
	w.add("hit rate", "%.1f %% of pages, %.1f %% of tokens%s", 100*p.PageHitRate, 100*p.TokenHitRate, unbounded)
	switch {
	case r.Store.Data == "":
	case r.Store.PagesAtStart == 0:
		w.add("started cold", "nothing was in %s; another demo on it starts warm", r.Store.Data)
	default:
		w.add("started warm", "%s pages of earlier demos were in %s; %s of the pages hit were theirs", humanize.Comma(int64(r.Store.PagesAtStart)),
			r.Store.Data, humanize.Comma(int64(p.PagesHitEarlier)))
	}
	w.add("stored by", "%s", counts(p.PagesStoredByTP))
	w.add("read by", "%s", counts(p.PagesReadByTP))
	if len(p.NotPublished) > 0 {
		w.add("not published", "%s (views, by reason)", counts(p.NotPublished))
	}
	if len(p.LeasedMisses) > 0 {
		w.add("leased misses", "%s", counts(p.LeasedMisses))
	}
	w.add("bytes moved", "%s fetched, %s published", humanize.Bytes(r.Bytes.Fetched), humanize.Bytes(r.Bytes.Published))
	w.add("bytes verified", "%s, against checksums and against what was generated", humanize.Bytes(r.Bytes.Verified))
	w.add("wrong bytes", "%d", r.Bytes.Wrong)
	w.add("speed", "fetch %.2f GB/s, publish %.2f GB/s over %s, client and server in this process; memcpy here %.1f GB/s on one core",
		r.Speed.FetchGBs, r.Speed.PublishGBs, r.Store.Transport, r.Speed.MemcpyGBs)
	w.add("prefill saved", "%.3g FLOPs of %.3g (%.1f %%), %.1f s at %.3g FLOP/s", r.Saved.PrefillFLOPs, r.Saved.OfFLOPs,
		100*r.Saved.Share, r.Saved.PrefillSecond, r.Saved.AtFLOPS)
	w.add("store", "%.1f %% of %s held, %s pages, %s evicted", 100*share(r.Store.HeldBytes, r.Store.MemoryBytes), humanize.IBytes(r.Store.MemoryBytes),
		humanize.Comma(int64(r.Store.Pages)), humanize.Comma(int64(r.Store.EvictedPages)))
	if r.Store.Data != "" {
		w.add("disk", "%.1f %% of %s held", 100*share(r.Store.DiskHeldBytes, r.Store.DiskBytes), humanize.IBytes(r.Store.DiskBytes))
	}
	w.text("\nWhat is not exactly the page asked for, as the server answered it just now:\n")
	for _, x := range r.Refusals {
		x.write(w)
	}
	return w.err
}

func (x *Refusal) write(w *lines) {
	mark := "ok  "
	if !x.AsExpected {
		mark = "BAD "
	}
	w.text("%s%s -> %s, %s\n", mark, x.Tried, x.Answer, x.Reason)
	if x.Detail != "" {
		w.text("      %s\n", x.Detail)
	}
}

// lines writes until an error, which it keeps.
type lines struct {
	w   io.Writer
	err error
}

func (l *lines) text(format string, args ...any) {
	if l.err == nil {
		_, l.err = fmt.Fprintf(l.w, format, args...)
	}
}

func (l *lines) add(name, format string, args ...any) {
	l.text("%-16s"+format+"\n", append([]any{name}, args...)...)
}

// counts is "tp1 12, tp2 30".
func counts(m map[string]uint64) string {
	var parts []string
	for _, k := range sorted(m) {
		parts = append(parts, k+" "+humanize.Comma(int64(m[k])))
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}
