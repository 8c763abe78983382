package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/quire-kv/quire/internal/checkpoint"
	"github.com/quire-kv/quire/internal/modelspec"
	"github.com/quire-kv/quire/namespace"
)

func (a *app) modelCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "model",
		Short:   "Digest a model's files: which weights and which configuration an engine runs",
		Example: "  quire model digest /models/smollm2-135m",
	}
	cmd.AddCommand(a.modelDigestCommand())
	return cmd
}

// digestFlags are those of model digest.
type digestFlags struct {
	manifest, model string
	pageTokens      uint32
	fresh           bool
}

func (a *app) modelDigestCommand() *cobra.Command {
	var f digestFlags
	cmd := &cobra.Command{
		Use:   "digest DIR",
		Short: "Digest the weights and the configuration of a checkpoint folder",
		Long: `Digest the weights and the configuration of a checkpoint folder, write its manifest and print the line for the adapter's
configuration. Tokenizers, sampling defaults and documentation are left out and listed. Files that did not change since
the last time are not read again. At its start an adapter compares the folder that its engine runs from with the manifest.

The spec that is shown is that of an engine which runs the checkpoint as it is in bfloat16; hash and provenance are the
engine's. Adapters make their spec themselves, of the running engine.`,
		Example: `  quire model digest /models/smollm2-135m
  quire model digest --manifest smollm2.json --model HuggingFaceTB/SmolLM2-135M /models/smollm2-135m
  quire model digest -o json /models/smollm2-135m`,
		Args: exactly("DIR"),
		RunE: a.action(func(ctx context.Context, args []string) error { return a.modelDigest(ctx, args[0], f) }),
	}
	cmd.Flags().StringVar(&f.manifest, "manifest", "", "write the manifest to this `file`; empty: where adapters look for it, $XDG_CACHE_HOME/quire/models/DIGEST.json")
	cmd.Flags().StringVar(&f.model, "model", "", "the model's `name`, the same wherever it runs: another name is another namespace; empty: made of its content")
	cmd.Flags().Uint32Var(&f.pageTokens, "page-tokens", 16, "`tokens` of a page in the spec that is shown")
	cmd.Flags().BoolVar(&f.fresh, "fresh", false, "read every file, also those that did not change since the last time")
	return cmd
}

// digestView is what -o json gives.
type digestView struct {
	Digest      string               `json:"digest"`
	Weights     string               `json:"weights"`
	Model       string               `json:"model"`
	Params      uint64               `json:"params"`
	Manifest    string               `json:"manifest"` // the file
	Files       []digestFile         `json:"files"`
	LeftOut     []checkpoint.LeftOut `json:"left_out"`
	ReadBytes   uint64               `json:"read_bytes"`
	CachedBytes uint64               `json:"cached_bytes"`
	Adapter     map[string]string    `json:"adapter"`                // settings to put into an adapter's configuration
	Spec        *namespace.Spec      `json:"spec,omitempty"`         // of a plain bfloat16 run, without hash and provenance
	SpecMissing string               `json:"spec_missing,omitempty"` // why there is none
	Unclassed   []string             `json:"unclassed,omitempty"`    // keys of config.json that become provenance
}

type digestFile struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
	Kind   string `json:"kind"`
}

func (a *app) modelDigest(ctx context.Context, dir string, f digestFlags) error {
	cacheDir := a.cacheDir()
	if cacheDir == "" && f.manifest == "" {
		return usagef("neither XDG_CACHE_HOME nor HOME is set, so there is no place for the manifest; give --manifest FILE")
	}
	o := checkpoint.Options{Now: a.now, Model: f.model, CacheDir: cacheDir}
	if f.fresh {
		o.CacheDir = ""
	}
	r, err := a.digestWithProgress(ctx, dir, o)
	if err != nil {
		return err
	}
	m := r.Manifest
	path := f.manifest
	if path == "" {
		path = checkpoint.DefaultPath(cacheDir, m.Digest)
	}
	path, err = filepath.Abs(path) // the adapter's configuration names it, and runs elsewhere
	if err != nil {
		return err
	}
	if err := m.Write(path); err != nil {
		return fmt.Errorf("write the manifest: %w", err)
	}
	if r.CacheError != nil {
		fmt.Fprintf(a.errOut, "quire: the digests could not be kept, so the next run reads all files again: %v\n", r.CacheError)
	}
	v := digestView{
		Digest: m.Digest, Weights: m.Weights, Model: m.Model, Params: m.Params, Manifest: path, LeftOut: m.LeftOut,
		ReadBytes: r.ReadBytes, CachedBytes: r.CachedBytes, Adapter: map[string]string{"model_digest": m.Digest, "weights": "frozen"},
	}
	if f.manifest != "" {
		v.Adapter["model_manifest"] = path
	}
	for _, x := range m.Files {
		v.Files = append(v.Files, digestFile{x.Name, x.Size, x.SHA256, x.Kind})
	}
	part, err := modelspec.PartOf(modelspec.Facts{Model: m.Model, Weights: m.Weights, Params: m.Params, Config: m.Config}, f.pageTokens)
	if err != nil {
		v.SpecMissing = err.Error()
	} else {
		v.Spec, v.Unclassed = &part.Spec, part.Unclassed
	}
	return a.print(v, func(w io.Writer) error { return writeDigest(w, v, part) })
}

// digestWithProgress names what was to be done in its errors.
func (a *app) digestWithProgress(ctx context.Context, dir string, o checkpoint.Options) (*checkpoint.Result, error) {
	var bar progress
	begun := false
	o.Progress = func(done, all uint64) { // never two at once
		if !begun {
			begun, bar = true, a.progressBytes(all, "digesting")
		}
		bar.at(done)
	}
	r, err := checkpoint.Digest(ctx, dir, o)
	bar.end()
	switch {
	case errors.Is(err, context.Canceled), err == nil:
		return r, err
	case errors.Is(err, checkpoint.ErrNoWeights):
		return nil, notFoundf("%v", err)
	}
	return nil, fmt.Errorf("digest %s: %w", dir, err)
}

// cacheDir is the user's, empty if there is none.
func (a *app) cacheDir() string {
	if dir := a.getenv("XDG_CACHE_HOME"); dir != "" {
		return dir
	}
	if home := a.getenv("HOME"); home != "" {
		return filepath.Join(home, ".cache")
	}
	return ""
}

func writeDigest(w io.Writer, v digestView, part *modelspec.Part) error {
	err := pairs(w,
		[2]string{"digest", v.Digest}, [2]string{"weights", v.Weights}, [2]string{"model", v.Model},
		[2]string{"parameters", countOrUnknown(v.Params)},
		[2]string{"files", fmt.Sprintf("%d; %s read, %s unchanged since the last time", len(v.Files), bytesText(v.ReadBytes), bytesText(v.CachedBytes))},
		[2]string{"manifest", v.Manifest},
	)
	if err != nil {
		return err
	}
	t := newTable("FILE", "KIND", "BYTES", "SHA256").numbers(2)
	for _, f := range v.Files {
		t.row(f.Name, f.Kind, fmt.Sprint(f.Size), f.SHA256)
	}
	for _, f := range v.LeftOut {
		t.row(f.Name, "left out: "+f.Why)
	}
	fmt.Fprintln(w)
	if err := t.write(w); err != nil {
		return err
	}
	settings := fmt.Sprintf("%q: %q, %q: %q", "model_digest", v.Digest, "weights", "frozen")
	if path, ok := v.Adapter["model_manifest"]; ok {
		settings += fmt.Sprintf(", %q: %q", "model_manifest", path)
	}
	fmt.Fprintf(w, "\nput into the adapter's configuration, if nothing changes the weights while the engine runs:\n  %s\n", settings)
	if v.Spec == nil {
		_, err := fmt.Fprintf(w, "\nno spec is shown: %s\n", v.SpecMissing)
		return err
	}
	fmt.Fprintf(w, "\nthe spec of a plain bfloat16 run; hash and provenance are the engine's:\n%s", indent(part.YAML()))
	if len(v.Unclassed) > 0 {
		fmt.Fprintf(w, "\nkeys of config.json that nobody has classed, which adapters state as provenance: %s\n", strings.Join(v.Unclassed, ", "))
	}
	return nil
}

func countOrUnknown(n uint64) string {
	if n == 0 {
		return "not known: no safetensors"
	}
	return countText(n)
}

func indent(text string) string {
	return "  " + strings.ReplaceAll(strings.TrimSuffix(text, "\n"), "\n", "\n  ") + "\n"
}
