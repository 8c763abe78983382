package main

import (
	"os"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// progress is a bar on a terminal, and nothing elsewhere.
type progress struct{ bar *progressbar.ProgressBar }

// progress begins a bar of so many steps; -1: nobody knows how many.
func (a *app) progress(steps int, what string) progress {
	return a.bar(int64(steps), what, progressbar.OptionShowCount(), progressbar.OptionSetPredictTime(steps > 0))
}

// progressBytes begins a bar of so many bytes.
func (a *app) progressBytes(bytes uint64, what string) progress {
	return a.bar(int64(bytes), what, progressbar.OptionShowBytes(true), progressbar.OptionUseIECUnits(true))
}

func (a *app) bar(steps int64, what string, more ...progressbar.Option) progress {
	f, ok := a.errOut.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) || a.output == asJSON {
		return progress{}
	}
	return progress{progressbar.NewOptions64(steps, append([]progressbar.Option{
		progressbar.OptionSetWriter(f), progressbar.OptionSetDescription(what),
		progressbar.OptionClearOnFinish(), progressbar.OptionSetWidth(30),
	}, more...)...)}
}

func (p progress) step() {
	if p.bar != nil {
		_ = p.bar.Add(1) // a bar that cannot be drawn is no failure
	}
}

// at says how far it is.
func (p progress) at(steps uint64) {
	if p.bar != nil {
		_ = p.bar.Set64(int64(steps))
	}
}

func (p progress) end() {
	if p.bar != nil {
		_ = p.bar.Finish()
	}
}
