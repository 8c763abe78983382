// Package namespace is identity: which pages may stand for each other, and who may use them. A Spec names one model as
// one engine runs it, field by field; the Registry turns specs into namespaces with an id, an epoch and a life. The
// package imports store/page and reason only; encoding, Diff and every decision are pure.
package namespace

import "github.com/quire-kv/quire/store/page"

// Spec is one identity, field by field. Text form YAML or JSON with these paths; unknown keys are errors. The class of
// a field is its own tag or that of the field above it: Semantic and Representation enter the id, Provenance enters it
// as the anchor of its waivers, Recorded never does. Treat a Spec as read-only once it is parsed.
type Spec struct {
	Model     Model       `yaml:"model" class:"semantic"`
	Rope      Rope        `yaml:"rope" class:"semantic"`
	Attention Attention   `yaml:"attention" class:"semantic"`
	Hash      HashRule    `yaml:"hash" class:"semantic"`
	DependsOn string      `yaml:"depends_on" class:"semantic"`   // prefix | prompt_boundary
	Groups    []Group     `yaml:"groups" class:"representation"` // their order is not identity
	Prov      Provenanced `yaml:"provenance" class:"provenance"`
	Record    Recordings  `yaml:"recorded" class:"recorded"`
	Strict    bool        `yaml:"strict" class:"semantic"`     // bit determinism: recorded.reduction is identity too
	WeakNames bool        `yaml:"weak_names" class:"semantic"` // allows weak hashes and caller-chosen names; never granted
	Shape     Shape       `yaml:"shape" class:"recorded"`      // for the cost model
}

// Model is what runs: digests are of the weights and the configuration as applied, not as downloaded.
type Model struct {
	ID      string `yaml:"id"`
	Weights Digest `yaml:"weights"` // quantised, merged and overridden as applied
	Config  Digest `yaml:"config"`  // resolved: overrides, compute dtype, norm, attention variant, approximations
}

// Rope is the effective position encoding.
type Rope struct {
	Table     Digest `yaml:"table"`      // of the table, or of the rule that makes it
	Regime    string `yaml:"regime"`     // none | fixed | longrope_short | longrope_long | dynamic_fixed
	MaxTokens uint64 `yaml:"max_tokens"` // only where the regime depends on it; 0 elsewhere
}

// Attention is what a token may see, and whatever changes the mathematics of seeing it.
type Attention struct {
	Mask     string            `yaml:"mask"`       // causal | sliding | chunked
	Chunk    uint32            `yaml:"chunk"`      // tokens; mask chunked only
	Sinks    uint32            `yaml:"sinks"`      // tokens or logits that are always seen; 0: none
	Backends map[string]string `yaml:"backends"`   // those that change the values: sparse, dual chunk...
	MM       string            `yaml:"multimodal"` // none | content_digest | caller_id (weak_names only)
}

// HashRule is the hash contract: engines that differ in it never find each other's pages.
type HashRule struct {
	Algorithm string `yaml:"algorithm"`
	Seed      Digest `yaml:"seed"`       // of the root seed's bytes
	ExtraKeys uint32 `yaml:"extra_keys"` // version of the rule for adapters, salt and media in the hash
	Unit      uint32 `yaml:"unit"`       // tokens a link covers
	Bytes     uint8  `yaml:"bytes"`      // of one hash, as the engine gives it
	Probe     Digest `yaml:"probe"`      // ProbeDigest of the chain over ProbeTokens
	Eagle     bool   `yaml:"eagle"`      // links cover the token after the page as well
}

// Group is layers whose KV has one shape and one rule.
type Group struct {
	Kind       string      `yaml:"kind"`   // full | window | mla | recurrent | draft | indexer
	Window     uint32      `yaml:"window"` // tokens; kind window only
	Layers     Layers      `yaml:"layers"` // those that own KV, ascending
	PageTokens uint32      `yaml:"page_tokens"`
	Heads      uint16      `yaml:"kv_heads"`
	Components []Component `yaml:"components"` // in the order of their bytes in a cell
	Grade      page.Grade  `yaml:"grade"`      // elements | cell | whole
	Packing    string      `yaml:"packing"`    // id of the order inside what cannot be cut; empty for elements
	DependsOn  string      `yaml:"depends_on" class:"semantic"`
}

// Component is one part of a cell: k, v, latent, rope, state, a scale.
type Component struct {
	Name  string `yaml:"name"`
	Width uint32 `yaml:"width"` // elements of one token; of one state for recurrent groups
	Bits  uint8  `yaml:"bits"`  // of one element
	DType string `yaml:"dtype"` // resolved: bfloat16, never auto
	Scale string `yaml:"scale"` // none | static:<digest> | inline | side
}

// Provenanced is who computed the pages: compared unless waived value by value.
type Provenanced struct {
	Engine         string            `yaml:"engine"`
	Version        string            `yaml:"engine_version"`
	Runner         string            `yaml:"runner"`
	Backend        string            `yaml:"attention_backend"`
	Kernel         string            `yaml:"kernel_build"`
	Arch           string            `yaml:"device_arch"`
	BatchInvariant bool              `yaml:"batch_invariant"`
	Options        map[string]string `yaml:"options"` // engine options that nobody has classed yet
}

// Recordings are kept for people and never compared; a strict spec compares the reduction.
type Recordings struct {
	Tokenizer string `yaml:"tokenizer_revision"`
	Host      string `yaml:"host"` // kept with the registration, not in page headers: pods come and go
	WriterTP  uint32 `yaml:"writer_tp"`
	WriterPP  uint32 `yaml:"writer_pp"`
	Reduction string `yaml:"reduction"` // shape of the sums, or fixed(n)
}

// Shape is the model's size as the cost model needs it: what recomputing pages costs follows from it (package cost).
type Shape struct {
	Params uint64 `yaml:"params"`
	Layers uint32 `yaml:"layers"`
	Heads  uint32 `yaml:"heads"` // query heads
	Width  uint32 `yaml:"width"` // of a head, the mean of keys and values; of MLA, uncompressed: nope + rope, and values
}
