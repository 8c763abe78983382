package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/quire-kv/quire/internal/doctor"
)

func (a *app) doctorCommand() *cobra.Command {
	var o doctor.Options
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check a data directory whose server does not run, and the machine",
		Long: `Check the data directory of a server that does not run: registry, every record, header and checksum of the disk tier,
and its index; each fault with file, offset, what is expected and found there, and what it costs. Then the machine: memory,
huge pages, limits, congestion control. Without --repair no page and no index is changed.

Exits 4 if anything is damaged and was not repaired, or if a server has the directory.`,
		Example: `  quire doctor --data /var/lib/quire
  quire doctor --data /var/lib/quire --repair`,
		Args: exactly(),
	}
	cmd.Flags().StringVar(&o.DataDir, "data", a.getenv("QUIRE_DATA"), "data `directory` of the server (env QUIRE_DATA)")
	cmd.Flags().BoolVar(&o.Repair, "repair", false, "make the index and what is damaged of bookkeeping anew; damaged pages are lost")
	cmd.RunE = a.action(func(ctx context.Context, _ []string) error {
		if o.DataDir == "" {
			return usagef("say which directory: --data")
		}
		return a.doctor(ctx, o)
	})
	return cmd
}

// doctorView is a report as -o json gives it.
type doctorView struct {
	Checks []checkView `json:"checks"`
	Disk   *diskView   `json:"disk,omitempty"`
}

type checkView struct {
	Check  string `json:"check"`
	Result string `json:"result"` // ok, note, damaged, in use, skipped
	Detail string `json:"detail"`
}

type diskView struct {
	Segments int         `json:"segments"`
	Journals int         `json:"journals"`
	Bytes    int64       `json:"segment_bytes"`
	Records  int64       `json:"records"`
	Live     int64       `json:"live_regions"`
	Torn     int64       `json:"torn_writes"`
	Faults   int64       `json:"faults"`
	First    []faultView `json:"first_faults"` // at most a hundred
	Repaired bool        `json:"repaired"`
}

type faultView struct {
	File     string `json:"file"`
	Offset   int64  `json:"offset"`
	Part     string `json:"part"`
	Expected string `json:"expected"`
	Got      string `json:"got"`
	Cost     string `json:"cost"`
}

func (a *app) doctor(ctx context.Context, o doctor.Options) error {
	bar := progress{}
	o.Progress = func(done, total int64) {
		if bar.bar == nil {
			bar = a.progressBytes(uint64(total), "reading")
		}
		bar.at(uint64(done))
	}
	report, err := doctor.Examine(ctx, o)
	bar.end()
	if err != nil {
		return err
	}
	if err := a.printReport(report); err != nil {
		return err
	}
	if report.Has(doctor.Damaged) || report.Has(doctor.InUse) {
		return &exitError{exitMismatch, ""}
	}
	return nil
}

func (a *app) printReport(r *doctor.Report) error {
	v := doctorView{Checks: []checkView{}}
	for _, f := range r.Findings {
		v.Checks = append(v.Checks, checkView{f.Check, string(f.Result), f.Detail})
	}
	if d := r.Disk; d != nil {
		v.Disk = &diskView{d.Segments, d.Journals, d.Bytes, d.Records, d.Live, d.Torn, d.Faults, []faultView{}, d.Repaired}
		for _, f := range d.First {
			v.Disk.First = append(v.Disk.First, faultView(f))
		}
	}
	return a.print(v, func(w io.Writer) error {
		t := newTable("CHECK", "RESULT", "DETAIL")
		for _, c := range v.Checks {
			t.row(c.Check, c.Result, c.Detail)
		}
		if err := t.write(w); err != nil || v.Disk == nil {
			return err
		}
		return v.Disk.write(w)
	})
}

func (d *diskView) write(w io.Writer) error {
	for _, f := range d.First {
		_, err := fmt.Fprintf(w, "\n%s at %d: %s\n  expected  %s\n  got       %s\n  costs     %s\n", f.File, f.Offset, f.Part, f.Expected, f.Got, f.Cost)
		if err != nil {
			return err
		}
	}
	if more := d.Faults - int64(len(d.First)); more > 0 {
		_, err := fmt.Fprintf(w, "\nand %s more faults\n", countText(uint64(more)))
		return err
	}
	return nil
}
