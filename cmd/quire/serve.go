package main

import (
	"context"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"github.com/quire-kv/quire/internal/daemon"
	"github.com/quire-kv/quire/internal/sysmem"
)

func (a *app) serveCommand() *cobra.Command {
	var file string
	var check bool
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the server until a signal asks it to stop",
		Long: `Run the server until SIGINT or SIGTERM asks it to stop: it says NOT_SERVING, lets calls finish for the drain timeout,
then stops. A second signal ends it at once.

Each setting has one name: in the file as it is (grpc_listen: 127.0.0.1:7420), in the environment in capitals after
QUIRE_ (QUIRE_GRPC_LISTEN), as a flag with dashes (--grpc-listen). A flag beats the environment, which beats the
file, which beats the default. An unknown key is an error.`,
		Example: `  quire serve
  quire serve --config /etc/quire/quire.yaml
  quire serve --data /var/lib/quire --memory 16GiB --auth token
  quire serve --config quire.yaml --check-config`,
		Args: exactly(),
	}
	cmd.Flags().StringVar(&file, "config", a.getenv("QUIRE_CONFIG"), "YAML `file` of settings (env QUIRE_CONFIG)")
	cmd.Flags().BoolVar(&check, "check-config", false, "print the settings in force with their origins, and stop")
	for _, f := range daemon.Fields() {
		if f.Bool {
			cmd.Flags().Bool(f.Flag(), f.On, f.Usage)
		} else {
			cmd.Flags().String(f.Flag(), "", f.Usage)
		}
	}
	cmd.RunE = a.action(func(ctx context.Context, _ []string) error {
		sources := daemon.Sources{File: file, Env: a.env, Flags: map[string]string{}}
		for _, f := range daemon.Fields() {
			if flag := cmd.Flags().Lookup(f.Flag()); flag.Changed {
				sources.Flags[f.Key] = flag.Value.String()
			}
		}
		return a.serve(ctx, sources, check)
	})
	return cmd
}

func (a *app) serve(ctx context.Context, sources daemon.Sources, check bool) error {
	loaded, err := daemon.Load(sources)
	if err != nil {
		return &exitError{exitUsage, err.Error()}
	}
	available, source, err := sysmem.Available()
	if err != nil && loaded.Config.MemoryBytes == 0 {
		return usagef("settings: memory: %v; set memory to a size such as 16GiB", err)
	}
	config := loaded.Resolve(available, source)
	if err := config.Validate(); err != nil {
		return &exitError{exitUsage, "settings: " + strings.ReplaceAll(err.Error(), "\n", "\nquire: settings: ")}
	}
	if check {
		return loaded.Describe(a.out, &config)
	}
	logger := daemon.NewLogger(&config, a.errOut)
	for _, w := range loaded.Warnings {
		logger.Warn("environment variable is ignored", "detail", w)
	}
	ballast := daemon.RareCollections(a.getenv)
	defer runtime.KeepAlive(ballast)
	d, err := daemon.Start(ctx, config, daemon.Deps{Logger: logger, Version: version()})
	if err != nil {
		return err
	}
	failed := make(chan error, 1)
	go func() { failed <- d.Wait() }()
	select {
	case err = <-failed:
	case <-ctx.Done():
	}
	stopErr := d.Stop(context.WithoutCancel(ctx))
	if err == nil {
		err = stopErr
	}
	return err
}
