package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// write is the report for people: a block for each trace and model, in it a table for each capacity.
func (r *replayReport) write(w io.Writer) error {
	if _, err := fmt.Fprintf(w, "pages of %d tokens, seed %d, seconds at %.3g FLOP/s\n", r.PageTokens, r.Seed, r.FLOPsPerSecond); err != nil {
		return err
	}
	for i := range r.Traces {
		for k := range r.Traces[i].Models {
			if err := r.Traces[i].write(w, &r.Traces[i].Models[k]); err != nil {
				return err
			}
		}
	}
	return nil
}

func (t *replayTrace) write(w io.Writer, m *replayCost) error {
	_, err := fmt.Fprintf(w, "\n%s, costs of %s: %s requests, %s page accesses, %s pages of %s\na cache without end serves %s of accesses and saves %s of %.4g FLOPs\n",
		t.Name, m.Name, countText(uint64(t.Requests)), countText(uint64(t.Accesses)), countText(uint64(t.Pages)), bytesText(m.PageBytes),
		percent(t.HitRate), percent(ratio(m.Content, m.FLOPs)), m.FLOPs)
	if err != nil {
		return err
	}
	for i := range m.Capacities {
		if err := m.Capacities[i].write(w, m); err != nil {
			return err
		}
	}
	return nil
}

func (c *replayCell) write(w io.Writer, m *replayCost) error {
	var b strings.Builder
	fmt.Fprintf(&b, "\ncapacity %s pages, %.3g %%, %s: no policy saves more than %.4g FLOPs, %s of content\n",
		countText(uint64(c.Pages)), c.Percent, bytesText(uint64(c.Pages)*m.PageBytes), c.Upper, percent(ratio(c.Upper, m.Content)))
	if c.Disk > 0 {
		fmt.Fprintf(&b, "and a disk tier of %s pages, %s; the line of belady is of one tier as large as both\n", countText(uint64(c.Disk)), bytesText(uint64(c.Disk)*m.PageBytes))
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return err
	}
	head := []string{"policy", "hits", "FLOPs", "seconds", "of upper", "of content", "written", "evicted", "refused", "orphans", "decisions"}
	if c.Disk > 0 {
		head = slices.Insert(head, 7, "to disk", "hits there")
	}
	t := newTable(head...)
	for i := 1; i < len(head)-1; i++ {
		t.numbers(i)
	}
	for _, r := range append([]replayRow{c.Belady}, c.Policies...) {
		row := []string{
			r.Policy, percent(r.HitRate), fmt.Sprintf("%.4g", r.Saved), fmt.Sprintf("%.1f", r.SavedSeconds), percent(r.OfUpper), percent(r.OfContent),
			bytesText(r.WrittenBytes), countText(uint64(r.Evicted)), countText(uint64(r.Refused)), countText(uint64(r.Orphans)), r.Decisions,
		}
		if c.Disk > 0 {
			row = slices.Insert(row, 7, bytesText(r.DiskBytes), countText(uint64(r.DiskHits)))
		}
		t.row(row...)
	}
	return t.write(w)
}

func percent(part float64) string { return fmt.Sprintf("%.2f %%", 100*part) }
