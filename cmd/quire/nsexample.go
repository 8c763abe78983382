package main

import (
	"context"
	"io"
	"strings"

	"github.com/spf13/cobra"
)

func (a *app) nsExampleCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "example [NAME]",
		Short: "Print a ready-made spec to begin with, or the names of all",
		Long: `Print a ready-made spec to begin with, or the names of all. Shapes and sizes are those of the real models; digests are
examples: put those of what you run.`,
		Example: `  quire ns example
  quire ns example llama-3-8b > llama.yaml`,
		Args: cobra.MaximumNArgs(1),
		RunE: a.action(func(_ context.Context, args []string) error {
			if len(args) == 0 {
				return a.print(struct {
					Examples []string `json:"examples"`
				}{exampleNames()}, func(w io.Writer) error {
					_, err := io.WriteString(w, strings.Join(exampleNames(), "\n")+"\n")
					return err
				})
			}
			text, err := exampleText(args[0])
			if err != nil {
				return err
			}
			_, err = io.WriteString(a.out, text)
			return err
		}),
	}
}
