package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
)

type tokenView struct {
	Name    string `json:"name"`
	Tenant  string `json:"tenant"`
	Role    string `json:"role"`
	Created string `json:"created,omitempty"`
	Expiry  string `json:"expiry,omitempty"` // absent: never
}

func tokenViewOf(t *quirev1.Token) tokenView {
	return tokenView{t.GetName(), t.GetTenant(), t.GetRole(), instant(t.GetCreated()), instant(t.GetExpiry())}
}

func (a *app) tokenCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "token",
		Short:   "Create, list and revoke bearer tokens",
		Example: "  quire token create engine-7 --tenant research --role engine --out engine-7.token",
	}
	cmd.AddCommand(a.tokenCreateCommand(), a.tokenListCommand(), a.tokenRevokeCommand())
	return cmd
}

func (a *app) tokenCreateCommand() *cobra.Command {
	var tenant, role, out string
	var lifetime time.Duration
	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "Create a token and show its secret, this once",
		Long:  "Create a token. Its secret is shown this once, or written to a file that only you can read; the server keeps its hash.",
		Example: `  quire token create engine-7 --tenant research --out engine-7.token
  quire token create grafana --role read-only --for 8760h`,
		Args: exactly("NAME"),
	}
	cmd.Flags().StringVar(&tenant, "tenant", "default", "`tenant` that the bearer acts for")
	cmd.Flags().StringVar(&role, "role", "engine", "`role`: engine, operator or read-only")
	cmd.Flags().DurationVar(&lifetime, "for", 0, "`time` until it expires; 0: never")
	cmd.Flags().StringVar(&out, "out", "", "new `file` for the secret, mode 0600, instead of showing it")
	cmd.RunE = a.action(func(ctx context.Context, args []string) error {
		return a.with(ctx, func(ctx context.Context, r *remote) error {
			req := &quirev1.CreateTokenRequest{Name: args[0], Tenant: tenant, Role: role}
			if lifetime > 0 {
				req.Lifetime = durationpb.New(lifetime)
			}
			return a.createToken(ctx, r, req, out)
		})
	})
	return cmd
}

func (a *app) createToken(ctx context.Context, r *remote, req *quirev1.CreateTokenRequest, out string) error {
	var file *os.File
	if out != "" { // before the token exists, so that no secret is lost for want of a file
		var err error
		if file, err = os.OpenFile(out, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600); err != nil {
			return fmt.Errorf("make file for the secret: %w", err)
		}
		defer file.Close()
	}
	answer, err := r.admin.CreateToken(ctx, req)
	if err != nil {
		if file != nil {
			os.Remove(out)
		}
		return err
	}
	secret := answer.GetSecret()
	if file != nil {
		if _, err := fmt.Fprintln(file, secret); err != nil {
			return fmt.Errorf("write secret: %w", err)
		}
		if err := file.Close(); err != nil {
			return fmt.Errorf("write secret: %w", err)
		}
		secret = ""
	}
	v := tokenViewOf(answer.GetToken())
	return a.print(struct {
		tokenView
		Secret string `json:"secret,omitempty"`
		File   string `json:"file,omitempty"`
	}{v, secret, out}, func(w io.Writer) error {
		shown := secret
		if out != "" {
			shown = "in " + out
		}
		return pairs(w, [2]string{"name", v.Name}, [2]string{"tenant", v.Tenant}, [2]string{"role", v.Role},
			[2]string{"expires", orNever(v.Expiry)}, [2]string{"secret", shown})
	})
}

func (a *app) tokenListCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Short:   "List tokens; secrets are not kept anywhere",
		Example: "  quire token list",
		Args:    exactly(),
		RunE: a.action(func(ctx context.Context, _ []string) error {
			return a.with(ctx, func(ctx context.Context, r *remote) error {
				answer, err := r.admin.ListTokens(ctx, &quirev1.ListTokensRequest{})
				if err != nil {
					return err
				}
				all := []tokenView{}
				for _, t := range answer.GetTokens() {
					all = append(all, tokenViewOf(t))
				}
				return a.print(struct {
					Tokens []tokenView `json:"tokens"`
				}{all}, func(w io.Writer) error {
					t := newTable("NAME", "TENANT", "ROLE", "CREATED", "EXPIRES")
					for _, v := range all {
						t.row(v.Name, v.Tenant, v.Role, orNever(v.Created), orNever(v.Expiry))
					}
					return t.write(w)
				})
			})
		}),
	}
}

func (a *app) tokenRevokeCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "revoke NAME",
		Short:   "Forget a token: the next call with it is refused",
		Example: "  quire token revoke engine-7",
		Args:    exactly("NAME"),
		RunE: a.action(func(ctx context.Context, args []string) error {
			return a.with(ctx, func(ctx context.Context, r *remote) error {
				if _, err := r.admin.RevokeToken(ctx, &quirev1.RevokeTokenRequest{Name: args[0]}); err != nil {
					return err
				}
				return a.print(struct {
					Revoked string `json:"revoked"`
				}{args[0]}, func(w io.Writer) error {
					_, err := fmt.Fprintln(w, args[0]+" is revoked")
					return err
				})
			})
		}),
	}
}
