package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/quire-kv/quire/internal/suggest"
)

const (
	defaultServer  = "127.0.0.1:7420"
	defaultTimeout = 10 * time.Second
)

// helpTemplate puts examples before flags.
const helpTemplate = `{{with or .Long .Short}}{{. | trimTrailingWhitespaces}}

{{end}}Usage:{{if .Runnable}}
  {{.UseLine}}{{end}}{{if .HasAvailableSubCommands}}
  {{.CommandPath}} COMMAND{{end}}{{if .HasExample}}

Examples:
{{.Example}}{{end}}{{if .HasAvailableSubCommands}}

Commands:{{range .Commands}}{{if or .IsAvailableCommand (eq .Name "help")}}
  {{rpad .Name .NamePadding}} {{.Short}}{{end}}{{end}}{{end}}{{if .HasAvailableLocalFlags}}

Flags:
{{.LocalFlags.FlagUsages | trimTrailingWhitespaces}}{{end}}{{if .HasAvailableInheritedFlags}}

Global flags (--server, --token-file, --timeout, -o json and others): see '{{.Root.CommandPath}} --help'.{{end}}
`

func (a *app) rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "quire",
		Short: "Keep KV pages of LLM inference, and never serve a wrong one",
		Long: `Quire stores the KV cache pages of LLM inference engines, addressed by the content of their prefix,
with their full identity. What is not exactly the page that was asked for is a miss with a reason.

Exit codes: 0 done, 1 failure, 2 wrong use, 3 not found, 4 mismatch or precondition, 5 unavailable.`,
		Example: `  quire demo                     # a server, two engines and every refusal, in one process
  quire serve --data /var/lib/quire
  quire ns list                  # the first look when a hit rate halves`,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	cobra.EnableCommandSorting = false
	a.globalFlags(root.PersistentFlags())
	root.AddCommand(
		a.serveCommand(), a.nsCommand(), a.modelCommand(), a.pageCommand(), a.leaseCommand(), a.tokenCommand(), a.tenantCommand(), a.tlsCommand(),
		a.statusCommand(), a.topCommand(), a.scrubCommand(), a.doctorCommand(), a.versionCommand(),
	)
	root.AddCommand(laterCommands(a)...)
	finish(root)
	return root
}

func (a *app) globalFlags(flags *pflag.FlagSet) {
	env := func(name, otherwise string) string {
		if v := a.getenv(name); v != "" {
			return v
		}
		return otherwise
	}
	flags.StringVar(&a.server, "server", env("QUIRE_SERVER", defaultServer), "`host:port` of the server, or unix:/path (env QUIRE_SERVER)")
	flags.StringVar(&a.tokenFile, "token-file", env("QUIRE_TOKEN_FILE", ""), "`file` with a bearer token (env QUIRE_TOKEN_FILE)")
	flags.StringVar(&a.ca, "ca", env("QUIRE_CA", ""), "PEM `file` of the server's authority; empty: the system's, and no TLS on loopback (env QUIRE_CA)")
	flags.StringVar(&a.cert, "cert", env("QUIRE_CERT", ""), "PEM `file` of a client certificate (env QUIRE_CERT)")
	flags.StringVar(&a.key, "key", env("QUIRE_KEY", ""), "PEM `file` of its key (env QUIRE_KEY)")
	flags.BoolVar(&a.insecure, "insecure", false, "allow another machine's server without TLS")
	flags.DurationVar(&a.timeout, "timeout", defaultTimeout, "`time` that one call may take")
	flags.VarP(&a.output, "output", "o", "output `format`: table or json")
}

// finish gives each command our help template, and errors that name the nearest known word.
func finish(cmd *cobra.Command) {
	cmd.SetHelpTemplate(helpTemplate)
	cmd.SetUsageTemplate(helpTemplate)
	cmd.DisableFlagsInUseLine = true
	cmd.SetFlagErrorFunc(flagError)
	if cmd.HasSubCommands() && cmd.RunE == nil && cmd.Run == nil {
		cmd.Args = knownCommand
		cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	}
	for _, sub := range cmd.Commands() {
		finish(sub)
	}
}

// knownCommand refuses what is left after the known words of a command line.
func knownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var names []string
	for _, sub := range cmd.Commands() {
		names = append(names, sub.Name())
	}
	if near, ok := suggest.Nearest(args[0], names); ok {
		return fmt.Errorf("unknown command %q; did you mean '%s %s'?", args[0], cmd.CommandPath(), near)
	}
	return fmt.Errorf("unknown command %q; one of %s", args[0], strings.Join(names, ", "))
}

// flagError names the nearest known flag.
func flagError(cmd *cobra.Command, err error) error {
	name, unknown := strings.CutPrefix(err.Error(), "unknown flag: --")
	if !unknown {
		return err
	}
	var names []string
	add := func(f *pflag.Flag) { names = append(names, f.Name) }
	cmd.LocalFlags().VisitAll(add)
	cmd.InheritedFlags().VisitAll(add)
	if near, ok := suggest.Nearest(name, names); ok {
		return fmt.Errorf("unknown flag --%s; did you mean --%s?", name, near)
	}
	return fmt.Errorf("unknown flag --%s", name)
}

// exactly wants one argument per name.
func exactly(names ...string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		switch {
		case len(args) < len(names):
			return fmt.Errorf("%s is missing", names[len(args)])
		case len(args) > len(names):
			return fmt.Errorf("%q is one argument too many", args[len(names)])
		}
		return nil
	}
}
