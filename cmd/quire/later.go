package main

import "github.com/spf13/cobra"

// laterCommands are the commands that live in packages of their own.
func laterCommands(a *app) []*cobra.Command {
	return []*cobra.Command{a.demoCommand(), a.benchCommand(), a.replayCommand(), a.traceCommand()}
}
