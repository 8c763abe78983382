package main

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is what this binary was built from: the module's version, else the commit, else "devel".
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "devel"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= shortID {
			return "devel-" + s.Value[:shortID]
		}
	}
	return "devel"
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Show the version of this binary",
		Example: "  quire version -o json",
		Args:    exactly(),
		RunE: a.action(func(context.Context, []string) error {
			v := struct {
				Version  string `json:"version"`
				Go       string `json:"go"`
				Platform string `json:"platform"`
			}{version(), runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
			return a.print(v, func(w io.Writer) error {
				_, err := fmt.Fprintf(w, "quire %s %s %s\n", v.Version, v.Go, v.Platform)
				return err
			})
		}),
	}
}
