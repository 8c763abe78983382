package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"time"

	"github.com/spf13/cobra"

	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/store/client"
	"github.com/quire-kv/quire/store/page"
)

// pageIO is one page, or view of one, that is read or written.
type pageIO struct {
	session *client.Session
	run     client.Run
	view    page.View // never zero
	bytes   int       // of the view
}

// openPage binds a session to the key's namespace and works out the size of what is asked for.
func openPage(ctx context.Context, r *remote, k *pageKey, view *quirev1.View, canonical []byte) (*pageIO, error) {
	s, err := r.OpenID(ctx, page.NamespaceID(k.namespace.GetId()), canonical)
	if err != nil {
		return nil, err
	}
	p := &pageIO{session: s, run: client.Run{Group: page.GroupID(k.group.GetId()), Hashes: k.hash}}
	copy(p.run.Scope[:], k.scope)
	geo, ok := s.Geometry(p.run.Group)
	if !ok {
		s.Close()
		return nil, notFoundf("the namespace has no group %s any more", short(k.group.GetId()))
	}
	if p.view = geo.Full(); view != nil {
		p.view = page.View{H0: uint16(view.GetH0()), H1: uint16(view.GetH1()), L0: uint16(view.GetL0()), L1: uint16(view.GetL1())}
	}
	if !geo.Full().Contains(p.view) {
		s.Close()
		return nil, usagef("the view is outside the page, which has %d kv heads and %d layers", geo.Heads, geo.Layers)
	}
	p.bytes = p.view.Cells() * int(geo.CellBytes)
	return p, nil
}

type transferView struct {
	Key     string   `json:"key"`
	View    string   `json:"view"`
	Outcome string   `json:"outcome"`
	Bytes   int      `json:"bytes"`
	SHA256  string   `json:"sha256"`
	Extents []string `json:"extents"`
	File    string   `json:"file,omitempty"`
}

func (p *pageIO) result(k *pageKey, outcome string, payload []byte, extents []page.ExtentID, file string) transferView {
	v := transferView{Key: k.text(), View: viewText(&quirev1.View{H0: uint32(p.view.H0), H1: uint32(p.view.H1), L0: uint32(p.view.L0), L1: uint32(p.view.L1)}),
		Outcome: outcome, Bytes: len(payload), Extents: []string{}, File: file}
	sum := sha256.Sum256(payload)
	v.SHA256 = hex.EncodeToString(sum[:])
	for _, e := range extents {
		v.Extents = append(v.Extents, fmt.Sprintf("%x/%d/%x", e.Writer, e.Seq, e.Digest))
	}
	return v
}

func (a *app) printTransfer(v transferView) error {
	return a.print(v, func(w io.Writer) error {
		_, err := fmt.Fprintf(w, "%s  %s, view %s, %d bytes, sha256 %s\n", v.Outcome, v.Key, v.View, v.Bytes, v.SHA256[:shortID])
		return err
	})
}

func (a *app) pageGetCommand() *cobra.Command {
	var view viewFlag
	var out string
	cmd := &cobra.Command{
		Use:   "get NAMESPACE KEY",
		Short: "Fetch a page and verify every byte; exits 3 if it is not there",
		Long: `Fetch a page, or a view of it, and verify every byte. Without --out only what was fetched is told. Exits 3 if it is
not there, 4 if something stands against serving it.

` + keyHelp,
		Example: `  quire page get 3f9a full/@hello
  quire page get 3f9a full/@hello --view 0:4,0:32 --out slice.bin`,
		Args: exactly("NAMESPACE", "KEY"),
	}
	cmd.Flags().Var(&view, "view", "only kv heads and layers h0:h1,l0:l1 (`view`)")
	cmd.Flags().StringVar(&out, "out", "", "`file` for the bytes, in Quire's order (head, layer, component, token, dim); - is standard output")
	cmd.RunE = a.onKey(func(ctx context.Context, r *remote, k *pageKey) error {
		p, err := openPage(ctx, r, k, view.view, nil)
		if err != nil {
			return err
		}
		defer p.session.Close()
		return a.get(ctx, p, k, out)
	})
	return cmd
}

func (a *app) get(ctx context.Context, p *pageIO, k *pageKey, out string) error {
	payload := make([]byte, p.bytes)
	results, err := p.session.FetchInto(ctx, p.run, p.view, nil, [][]byte{payload}, nil)
	if err != nil {
		return err
	}
	if got := results[0]; got.Outcome != client.OK {
		return missed(got.Reason, "page %s was not served", k.text())
	}
	if out == "-" {
		_, err := a.out.Write(payload)
		return err
	}
	if out != "" {
		if err := os.WriteFile(out, payload, 0o600); err != nil {
			return err
		}
	}
	return a.printTransfer(p.result(k, "verified", payload, results[0].Extents, out))
}

// putFlags say what is published, and after what.
type putFlags struct {
	view         viewFlag
	file, parent string
	fill, root   bool
	durable      bool
	expire       time.Duration
}

func (a *app) pagePutCommand() *cobra.Command {
	var f putFlags
	cmd := &cobra.Command{
		Use:   "put NAMESPACE KEY",
		Short: "Publish a page, or a view of one",
		Long: `Publish a page, or a view of one. What is stored already stays as it is. The bytes are in Quire's order: head, layer,
component, token, dim. Exits 4 if the publication is refused, 5 if there is no room now.

` + keyHelp,
		Example: `  quire page put 3f9a full/@hello --fill
  quire page put 3f9a full/@world --file page.bin --parent @hello
  quire page put 3f9a full/@half --file half.bin --view 0:4,0:32`,
		Args: exactly("NAMESPACE", "KEY"),
	}
	cmd.Flags().StringVar(&f.file, "file", "", "`file` with the bytes, exactly as many as the view has; - is standard input")
	cmd.Flags().BoolVar(&f.fill, "fill", false, "make bytes up from the key, to try things out")
	cmd.Flags().Var(&f.view, "view", "only kv heads and layers h0:h1,l0:l1 (`view`)")
	cmd.Flags().StringVar(&f.parent, "parent", "", "the `hash` of the page before, hex or @TEXT; without it the parent is unknown")
	cmd.Flags().BoolVar(&f.root, "root", false, "the page is the first of its chain")
	cmd.Flags().DurationVar(&f.expire, "expire", 0, "`time` that the page lives; 0: as the namespace says")
	cmd.Flags().BoolVar(&f.durable, "durable", false, "return when the page is on disk; without it as the namespace says")
	put := a.onKey(func(ctx context.Context, r *remote, k *pageKey) error { return a.put(ctx, r, k, &f) })
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case (f.file == "") == !f.fill:
			return errors.New("give either --file FILE or --fill")
		case f.parent != "" && f.root:
			return errors.New("--parent and --root exclude each other: the first page of a chain has no parent")
		}
		return put(cmd, args)
	}
	return cmd
}

func (a *app) put(ctx context.Context, r *remote, k *pageKey, f *putFlags) error {
	canonical, err := provenanceFor(ctx, r, k.namespace)
	if err != nil {
		return err
	}
	p, err := openPage(ctx, r, k, f.view.view, canonical)
	if err != nil {
		return err
	}
	defer p.session.Close()
	item := client.Item{Root: f.root, ParentUnknown: !f.root && f.parent == "", Expire: f.expire}
	if f.parent != "" {
		b, err := parseHash(f.parent, int(k.namespace.GetHashBytes()))
		if err != nil {
			return err
		}
		if item.Parent, err = page.MakeHash(b); err != nil {
			return usagef("--parent: %v", err)
		}
	}
	if item.Bytes, err = a.payload(p, k, f); err != nil {
		return err
	}
	results, err := p.session.Publish(ctx, p.run, p.view, nil, []client.Item{item}, client.PublishOptions{Durable: f.durable})
	if err != nil {
		return err
	}
	switch got := results[0]; got.Outcome {
	case client.Committed:
		return a.printTransfer(p.result(k, "committed", item.Bytes, got.Extents, ""))
	case client.Present:
		word := "present already"
		if got.Divergent {
			word = "present already, with other bytes"
		}
		return a.printTransfer(p.result(k, word, item.Bytes, got.Extents, ""))
	default:
		return missed(got.Reason, "page %s was not published", k.text())
	}
}

// provenanceFor is what a publication into n says of who computed it: as the namespace's own spec has it. It opens no
// other namespace and revives none.
func provenanceFor(ctx context.Context, r *remote, n *quirev1.Namespace) ([]byte, error) {
	if n.GetState() != quirev1.NamespaceState_NAMESPACE_STATE_ACTIVE {
		return nil, &exitError{exitMismatch, fmt.Sprintf("namespace %s is %s and takes no publications", short(n.GetId()), stateName(n.GetState()))}
	}
	answer, err := r.namespaces.Open(ctx, &quirev1.OpenRequest{Spec: n.GetSpec(), Tenant: n.GetTenant()})
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(answer.GetNamespace().GetId(), n.GetId()) {
		return nil, fmt.Errorf("the spec of %s opens %s; publish there instead", short(n.GetId()), short(answer.GetNamespace().GetId()))
	}
	return answer.GetCanonicalProvenance(), nil
}

// payload is exactly the bytes of the view.
func (a *app) payload(p *pageIO, k *pageKey, f *putFlags) ([]byte, error) {
	if f.fill {
		payload := make([]byte, p.bytes)
		rand.NewChaCha8(sha256.Sum256([]byte(k.text()))).Read(payload) // never fails
		return payload, nil
	}
	var payload []byte
	var err error
	if f.file == "-" {
		payload, err = readAllBounded(a.in, "standard input", int64(p.bytes))
	} else {
		payload, err = readBounded(f.file, int64(p.bytes))
	}
	if err == nil && len(payload) != p.bytes {
		err = usagef("%s has %d bytes; the view has %d", f.file, len(payload), p.bytes)
	}
	return payload, err
}
