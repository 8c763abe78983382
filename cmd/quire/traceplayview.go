package main

import (
	"fmt"
	"io"
)

// playReport is what a play found. Its JSON is stable.
type playReport struct {
	Trace        string    `json:"trace"`
	Server       string    `json:"server"`
	Model        string    `json:"model"`
	ServerPolicy string    `json:"server_policy"` // empty: the server does not say
	Policy       string    `json:"policy"`        // of the prediction
	Seeded       bool      `json:"seeded"`        // the server's draws are known
	Requests     int       `json:"requests"`
	Accesses     int       `json:"page_accesses"`
	Namespaces   int       `json:"namespaces"`
	InFlight     int       `json:"in_flight"`
	FLOPs        float64   `json:"flops"` // of all accesses
	PageBytes    int       `json:"page_bytes"`
	Seconds      float64   `json:"seconds"`        // that the play took
	Speed        float64   `json:"speed"`          // times as fast as in the trace, as it came out
	Held         int       `json:"held_pages"`     // at most
	Unleased     int       `json:"unleased_pages"` // hits beyond what a lease may hold
	Lost         int       `json:"lost_pages"`     // hits that could not be fetched
	Present      int       `json:"present_pages"`  // published by others between lookup and publication
	Live         playShare `json:"live"`
	Predicted    playShare `json:"predicted"`       // the mean of all predictions
	Predictions  int       `json:"predictions"`     // with draws of their own
	Low          float64   `json:"saved_flops_low"` // of predictions
	High         float64   `json:"saved_flops_high"`
	Ratio        float64   `json:"saved_of_predicted"`

	disk bool
}

type playShare struct {
	Hits        int     `json:"hit_pages"`
	HitRate     float64 `json:"hit_rate"`
	Saved       float64 `json:"saved_flops"`
	Written     int     `json:"written_pages"`
	MemoryBytes uint64  `json:"memory_written_bytes"` // published, and brought back from disk
	DiskBytes   uint64  `json:"disk_written_bytes"`
	Evicted     int     `json:"evicted_pages"`
	Refused     int     `json:"refused_pages"`
}

// fill takes in the predictions.
func (r *playReport) fill(all []playShare) {
	mean := func(of func(s *playShare) float64) (sum float64) {
		for i := range all {
			sum += of(&all[i]) / float64(len(all))
		}
		return sum
	}
	r.Predictions = len(all)
	r.Low, r.High = all[0].Saved, all[0].Saved
	for i := range all {
		r.Low, r.High = min(r.Low, all[i].Saved), max(r.High, all[i].Saved)
	}
	whole := func(of func(s *playShare) float64) int { return int(mean(of) + 0.5) }
	r.Predicted = playShare{
		Hits: whole(func(s *playShare) float64 { return float64(s.Hits) }), HitRate: mean(func(s *playShare) float64 { return s.HitRate }),
		Saved: mean(func(s *playShare) float64 { return s.Saved }), Written: whole(func(s *playShare) float64 { return float64(s.Written) }),
		MemoryBytes: uint64(whole(func(s *playShare) float64 { return float64(s.MemoryBytes) })),
		DiskBytes:   uint64(whole(func(s *playShare) float64 { return float64(s.DiskBytes) })),
		Evicted:     whole(func(s *playShare) float64 { return float64(s.Evicted) }), Refused: whole(func(s *playShare) float64 { return float64(s.Refused) }),
	}
	r.Ratio = ratio(r.Live.Saved, r.Predicted.Saved)
}

// write is the report for people.
func (r *playReport) write(w io.Writer) error {
	if _, err := fmt.Fprintf(w, "%s against %s: %s requests, %s page accesses, costs of %s, in %.1f s: %.3g times as fast as in the trace\n",
		r.Trace, r.Server, countText(uint64(r.Requests)), countText(uint64(r.Accesses)), r.Model, r.Seconds, r.Speed); err != nil {
		return err
	}
	full := "the store held %s pages of %s at most\n"
	if r.Live.Evicted == 0 {
		full = "the store held %s pages of %s and evicted none: the prediction has room for all\n"
	}
	if _, err := fmt.Fprintf(w, full, countText(uint64(r.Held)), bytesText(uint64(r.PageBytes))); err != nil {
		return err
	}
	if r.ServerPolicy != "" && r.ServerPolicy != r.Policy {
		if _, err := fmt.Fprintf(w, "the server evicts by %s: this is what %s would do\n", r.ServerPolicy, r.Policy); err != nil {
			return err
		}
	}
	if _, err := fmt.Fprintln(w); err != nil {
		return err
	}
	t := newTable("", "live", "predicted: "+r.Policy).numbers(1, 2)
	row := func(what string, of func(s *playShare) string) { t.row(what, of(&r.Live), of(&r.Predicted)) }
	row("hits", func(s *playShare) string { return percent(s.HitRate) })
	row("FLOPs saved", func(s *playShare) string { return fmt.Sprintf("%.4g", s.Saved) })
	row("  of all", func(s *playShare) string { return percent(ratio(s.Saved, r.FLOPs)) })
	row("pages written", func(s *playShare) string { return countText(uint64(s.Written)) })
	row("  bytes, to memory", func(s *playShare) string { return bytesText(s.MemoryBytes) })
	if r.disk {
		row("  bytes, to disk", func(s *playShare) string { return bytesText(s.DiskBytes) })
	}
	row("pages evicted", func(s *playShare) string { return countText(uint64(s.Evicted)) })
	row("pages refused", func(s *playShare) string { return countText(uint64(s.Refused)) })
	if err := t.write(w); err != nil {
		return err
	}
	swing := ""
	if r.Predictions > 1 {
		swing = fmt.Sprintf("; %d predictions with draws of their own are from %s to %s of their mean", r.Predictions,
			percent(ratio(r.Low, r.Predicted.Saved)), percent(ratio(r.High, r.Predicted.Saved)))
	}
	_, err := fmt.Fprintf(w, "\nlive saves %s of what is predicted%s\n", percent(r.Ratio), swing)
	return err
}
