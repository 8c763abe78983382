package checkpoint

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"unicode/utf8"
)

// Format names the version of the manifest.
const Format = "quire model manifest 1"

// Manifest is a checkpoint as it was digested. Its JSON is deterministic: no time, no host, no path.
type Manifest struct {
	Format  string    `json:"format"`
	Digest  string    `json:"digest"`  // "sha256:...", of all files: the model digest
	Weights string    `json:"weights"` // of all but config.json: model.weights of a spec that runs them as they are
	Model   string    `json:"model"`   // the model's name
	Params  uint64    `json:"params"`  // elements of all tensors; 0 where no file tells
	Files   []*File   `json:"files"`   // ascending by name
	LeftOut []LeftOut `json:"left_out"`
	Config  string    `json:"config,omitempty"` // the text of config.json
}

// File is one digested file. Header and tensors are those of weights.
type File struct {
	Name         string   `json:"name"` // from the folder, with slashes
	Size         int64    `json:"size"`
	SHA256       string   `json:"sha256"` // 64 hex digits
	Kind         string   `json:"kind"`
	HeaderBytes  int64    `json:"header_bytes,omitempty"` // from the start of the file
	HeaderSHA256 string   `json:"header_sha256,omitempty"`
	Tensors      []Tensor `json:"tensors,omitempty"`
	Params       uint64   `json:"params,omitempty"`
}

// Tensor is one tensor's samples. A file that is not looked into has one of no name: the file itself.
type Tensor struct {
	Name   string  `json:"name"`
	Blocks []Block `json:"blocks"`
}

// Block is up to BlockBytes of a file. JSON: [offset, length, "hex"].
type Block struct {
	Offset int64
	Length int64
	Digest [16]byte // the first bytes of its SHA-256
}

// LeftOut is a file that is not part of the digest, and why.
type LeftOut struct {
	Name string `json:"name"`
	Why  string `json:"why"`
}

// MarshalJSON writes a block as an array.
func (b Block) MarshalJSON() ([]byte, error) {
	return fmt.Appendf(nil, `[%d,%d,"%x"]`, b.Offset, b.Length, b.Digest), nil
}

// UnmarshalJSON reads what MarshalJSON writes.
func (b *Block) UnmarshalJSON(data []byte) error {
	var digest string
	parts := []any{&b.Offset, &b.Length, &digest}
	if err := json.Unmarshal(data, &parts); err != nil {
		return err
	}
	if n, err := hex.Decode(b.Digest[:], []byte(digest[:min(len(digest), hex.EncodedLen(len(b.Digest)))])); err != nil || n != len(b.Digest) || len(parts) != 3 {
		return errors.New("a block is [offset, length, 32 hex digits]")
	}
	return nil
}

func (l *listing) manifest(dir, model string) (*Manifest, error) {
	m := &Manifest{Format: Format, Model: model, Files: l.files, LeftOut: l.leftOut, Config: l.config}
	if !utf8.ValidString(m.Model) || !utf8.ValidString(l.config) {
		return nil, fmt.Errorf("the name or the %s of %s is not UTF-8", configName, dir)
	}
	for _, f := range l.files {
		if f.Kind == KindConfig && f.SHA256 != sha256Hex([]byte(l.config)) {
			return nil, fmt.Errorf("%s in %s %w", configName, dir, errChanged)
		}
		if l.indexed == nil || l.indexed[f.Name] {
			m.Params += f.Params
		}
	}
	m.Digest = listDigest("quire-model-v1", l.files, func(*File) bool { return true })
	m.Weights = listDigest("quire-weights-v1", l.files, func(f *File) bool { return f.Kind != KindConfig })
	if m.Model == "" {
		m.Model = modelName(l.config, m.Weights)
	}
	return m, nil
}

// modelName is a name made of content alone: that of a folder differs from machine to machine, and a model's name is
// part of identity.
func modelName(config, weights string) string {
	var c struct {
		Type string `json:"model_type"`
	}
	if json.Unmarshal([]byte(config), &c) != nil || !typeName.MatchString(c.Type) {
		c.Type = "model"
	}
	return c.Type + "-" + strings.TrimPrefix(weights, "sha256:")[:12]
}

var typeName = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)

// listDigest is the digest of a list: its domain and a line "sha256 size name" for each file, ascending by name.
func listDigest(domain string, files []*File, chosen func(*File) bool) string {
	h := sha256.New()
	fmt.Fprintf(h, "%s\n", domain)
	for _, f := range files {
		if chosen(f) {
			fmt.Fprintf(h, "%s %d %s\n", f.SHA256, f.Size, f.Name)
		}
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}

func sha256Hex(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// JSON is the manifest's file, one line.
func (m *Manifest) JSON() []byte {
	data, err := json.Marshal(m)
	if err != nil { // strings, numbers and lists of them
		panic(err)
	}
	return append(data, '\n')
}

// DefaultPath is where the manifest of a digest is looked for below a user's cache directory.
func DefaultPath(cacheDir, digest string) string {
	return filepath.Join(cacheDir, "quire", "models", strings.TrimPrefix(digest, "sha256:")+".json")
}

// Write puts the manifest into a file, whole or not at all.
func (m *Manifest) Write(path string) error { return replaceFile(path, m.JSON(), 0o644) }

// replaceFile writes a file beside path and renames it over path. Directories above it are made.
func replaceFile(path string, data []byte, mode os.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Chmod(mode), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}
