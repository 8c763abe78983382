package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/quire-kv/quire/internal/sysmem"
	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/store/rpc"
)

func (a *app) scrubCommand() *cobra.Command {
	var tier string
	var rate sysmem.Bytes
	cmd := &cobra.Command{
		Use:   "scrub",
		Short: "Re-read and verify what the server holds, while it serves",
		Long: `Re-read and verify every extent that the server holds, in memory and on disk, while it serves. What is damaged is
dropped: it is a miss from then on and can be published again. Every read verifies too; a scrub finds damage in what
nobody reads. One runs at a time; ending this command ends it. Exits 4 if anything was damaged.`,
		Example: `  quire scrub
  quire scrub --tier disk --rate 200MiB`,
		Args: exactly(),
	}
	cmd.Flags().StringVar(&tier, "tier", "", "only this `tier`: host or disk; empty: all")
	cmd.Flags().Var(&rate, "rate", "read at most this `size` in a second; 0: the server's default of 100MB")
	cmd.RunE = a.action(func(ctx context.Context, _ []string) error {
		return a.scrub(ctx, &quirev1.ScrubRequest{Tier: tier, BytesPerSecond: uint64(rate)})
	})
	return cmd
}

// scrubStep is more than what the server reads between two words of its progress.
const scrubStep = 64 << 20

// scrubView is a scrub as -o json gives it.
type scrubView struct {
	Extents uint64 `json:"verified_extents"`
	Bytes   uint64 `json:"verified_bytes"`
	Corrupt uint64 `json:"corrupt_extents"` // found and dropped
}

func (a *app) scrub(ctx context.Context, r *quirev1.ScrubRequest) error {
	// One word of progress may take as long as a call, and as long as the rate holds it back.
	patience := a.timeout + time.Duration(float64(scrubStep)/float64(cmp.Or(r.GetBytesPerSecond(), scrubStep))*float64(time.Second))
	last, err := a.followScrub(ctx, patience, r)
	switch {
	case err != nil && ctx.Err() != nil:
		return &exitError{exitFailure, "interrupted after " + bytesText(last.GetVerifiedBytes()) + "; the scrub has ended"}
	case err != nil:
		return err
	}
	v := scrubView{last.GetVerifiedExtents(), last.GetVerifiedBytes(), last.GetCorruptExtents()}
	err = a.print(v, func(w io.Writer) error {
		return pairs(w,
			[2]string{"verified", countText(v.Extents) + " extents, " + bytesText(v.Bytes)},
			[2]string{"damaged", damageText(v.Corrupt)})
	})
	if err == nil && v.Corrupt > 0 {
		return &exitError{exitMismatch, ""}
	}
	return err
}

func damageText(extents uint64) string {
	if extents == 0 {
		return "none"
	}
	return countText(extents) + " extents, dropped"
}

// followScrub runs a scrub to its end, shows its progress, and answers the last that was heard of it.
func (a *app) followScrub(ctx context.Context, patience time.Duration, r *quirev1.ScrubRequest) (last *quirev1.ScrubResponse, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silent := time.AfterFunc(patience, func() {
		cancel(&exitError{exitUnavailable, fmt.Sprintf("the server said nothing for %v", patience)})
	})
	defer silent.Stop()
	c, err := a.dial(ctx)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	stream, err := c.Admin().Scrub(ctx, r)
	bar := progress{}
	defer func() { bar.end() }()
	for err == nil && !last.GetDone() {
		var m *quirev1.ScrubResponse
		if m, err = stream.Recv(); err == nil {
			silent.Reset(patience)
			if last == nil && m.GetTotalBytes() > 0 {
				bar = a.progressBytes(m.GetTotalBytes(), "scrub")
			}
			last = m
			bar.at(min(m.GetVerifiedBytes(), m.GetTotalBytes()))
		}
	}
	var silence *exitError
	switch {
	case errors.As(context.Cause(ctx), &silence):
		return last, silence
	case errors.Is(err, io.EOF):
		return last, errors.New("the server ended the scrub before it was through")
	case err != nil:
		return last, rpc.FromStatus(err)
	}
	return last, nil
}
