package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/quire-kv/quire/internal/auth"
)

func (a *app) tlsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "tls",
		Short:   "Make certificates for development",
		Example: "  quire tls dev certs",
	}
	cmd.AddCommand(a.tlsDevCommand())
	return cmd
}

func (a *app) tlsDevCommand() *cobra.Command {
	var hosts, clients []string
	var lifetime time.Duration
	cmd := &cobra.Command{
		Use:   "dev DIRECTORY",
		Short: "Make an authority for development, with a server's and clients' certificates",
		Long: `Make an authority for development, with a server's and clients' certificates. The authority's key is forgotten at
once: to add a client, make all anew. Files that exist are not overwritten.`,
		Example: `  quire tls dev certs
  quire tls dev certs --host gpu-1.example --client quire://research/engine/gpu-1
  quire serve --auth mtls --tls-cert certs/server.pem --tls-key certs/server-key.pem --tls-client-ca certs/ca.pem`,
		Args: exactly("DIRECTORY"),
	}
	cmd.Flags().StringArrayVar(&hosts, "host", nil, "another name or `address` of the server, beside localhost")
	cmd.Flags().StringArrayVar(&clients, "client", nil, "a `principal` quire://tenant/role/name (default an operator and an engine of tenant default)")
	cmd.Flags().DurationVar(&lifetime, "for", 90*24*time.Hour, "`time` that the certificates are good for")
	cmd.RunE = a.action(func(_ context.Context, args []string) error {
		ca := auth.DevCA{Dir: args[0], Hosts: hosts, Lifetime: lifetime}
		for _, c := range clients {
			p, err := auth.ParsePrincipalURI(c)
			if err != nil {
				return usagef("--client %q: %v", c, err)
			}
			ca.Clients = append(ca.Clients, p)
		}
		return a.tlsDev(ca)
	})
	return cmd
}

func (a *app) tlsDev(ca auth.DevCA) error {
	written, err := auth.WriteDevCA(ca)
	if err != nil {
		return err
	}
	return a.print(struct {
		Files []string `json:"files"`
	}{written}, func(w io.Writer) error {
		for _, file := range written {
			fmt.Fprintln(w, file)
		}
		return nil
	})
}
