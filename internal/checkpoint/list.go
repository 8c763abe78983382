package checkpoint

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Kinds of files that are digested.
const (
	KindWeights   = "weights"
	KindConfig    = "config"    // config.json: its resolved form is identity of its own
	KindIndex     = "index"     // which file has which tensor
	KindCode      = "code"      // a model's own program
	KindProcessor = "processor" // how images and sound become inputs
	KindSettings  = "settings"  // other JSON and YAML: quantisation, adapters, and what nobody knows
)

const (
	configName    = "config.json"
	maxFiles      = 1 << 14
	maxConfig     = 1 << 20  // bytes; the largest in use has 200 KiB
	maxIndexBytes = 64 << 20 // a 100,000-tensor model has 9 MiB
)

// weightSuffixes are the formats that engines load; only safetensors is looked into.
var weightSuffixes = []string{".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".npz", ".npy", ".tensors"}

// trainingState has the names of weights, or of settings, but no engine reads it.
var trainingState = []string{"training_args.bin", "scheduler.pt", "optimizer.pt", "optimizer.bin", "scaler.pt", "scheduler.bin", "trainer_state.json", "training_args.json"}

var processors = []string{"preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json"}

// irrelevant says of JSON files why they do not change what a model computes for given tokens.
var irrelevant = []struct{ prefix, why string }{
	{"generation_config", "how to sample"}, {"tokenizer", "tokens are in the page hash"}, {"special_tokens_map", "tokens are in the page hash"},
	{"added_tokens", "tokens are in the page hash"}, {"vocab", "tokens are in the page hash"}, {"tekken", "tokens are in the page hash"},
	{"chat_template", "tokens are in the page hash"},
}

// IsWeights says whether a file of this name holds weights.
func IsWeights(name string) bool {
	lower := strings.ToLower(name)
	return !slices.Contains(trainingState, name) && slices.ContainsFunc(weightSuffixes, func(s string) bool { return strings.HasSuffix(lower, s) })
}

// kindOf sorts a file of the folder by its name: a kind, or why it is left out.
func kindOf(name string) (kind, why string) {
	lower := strings.ToLower(name)
	switch {
	case name == configName:
		return KindConfig, ""
	case strings.HasPrefix(name, "."):
		return "", "hidden"
	case slices.Contains(trainingState, name):
		return "", "state of a training"
	case IsWeights(name):
		return KindWeights, ""
	case strings.HasSuffix(lower, ".index.json"):
		return KindIndex, ""
	case strings.HasSuffix(lower, ".py"):
		return KindCode, ""
	case slices.Contains(processors, name):
		return KindProcessor, ""
	case !slices.Contains([]string{".json", ".yaml", ".yml"}, filepath.Ext(lower)):
		return "", "neither weights nor settings nor code"
	}
	for _, i := range irrelevant {
		if strings.HasPrefix(lower, i.prefix) {
			return "", i.why
		}
	}
	return KindSettings, ""
}

// listing is what a folder has, sorted by name.
type listing struct {
	files   []*File
	leftOut []LeftOut
	indexed map[string]bool // files that an index names; nil: there is no index
	config  string
}

func list(dir string) (*listing, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	l := &listing{leftOut: []LeftOut{}}
	for _, e := range entries {
		if err := l.add(dir, e.Name()); err != nil {
			return nil, err
		}
	}
	for _, f := range slices.Clone(l.files) {
		if f.Kind == KindIndex {
			if err := l.readIndex(dir, f.Name); err != nil {
				return nil, err
			}
		}
	}
	if !slices.ContainsFunc(l.files, func(f *File) bool { return f.Kind == KindWeights }) {
		return nil, fmt.Errorf("%w in %s: name the folder that has the model's weight files (%s) itself", ErrNoWeights, dir, strings.Join(weightSuffixes, ", "))
	}
	if len(l.files) > maxFiles {
		return nil, fmt.Errorf("%s has %d files to digest, at most %d are taken", dir, len(l.files), maxFiles)
	}
	slices.SortFunc(l.files, func(a, b *File) int { return strings.Compare(a.Name, b.Name) })
	return l, l.readConfig(dir)
}

func (l *listing) add(dir, name string) error {
	if strings.ContainsFunc(name, func(r rune) bool { return r < ' ' }) {
		return fmt.Errorf("%s has a file called %q: rename it, names are of one line", dir, name)
	}
	path := filepath.Join(dir, name)
	kind, why := kindOf(name)
	info, err := os.Stat(path)
	switch {
	case err != nil && kind == "": // a dead link to what is left out anyway
	case err != nil:
		return fileError(path, err)
	case info.IsDir():
		kind, why = "", "a folder; engines read the files beside it"
	case !info.Mode().IsRegular() && kind != "":
		return fmt.Errorf("%s is no regular file", path)
	}
	if kind == "" {
		l.leftOut = append(l.leftOut, LeftOut{name, why})
		return nil
	}
	l.files = append(l.files, &File{Name: name, Size: info.Size(), Kind: kind})
	return nil
}

// readIndex takes up what an index of shards names, wherever it lies below the folder.
func (l *listing) readIndex(dir, name string) error {
	path := filepath.Join(dir, name)
	data, err := readBounded(path, maxIndexBytes)
	if err != nil {
		return err
	}
	var index struct {
		WeightMap map[string]string `json:"weight_map"`
	}
	if err := json.Unmarshal(data, &index); err != nil {
		return fmt.Errorf("%s is no index of shards: %w", path, err)
	}
	if l.indexed == nil {
		l.indexed = map[string]bool{}
	}
	for tensor, file := range index.WeightMap {
		if l.indexed[file] {
			continue
		}
		l.indexed[file] = true
		if slices.ContainsFunc(l.files, func(f *File) bool { return f.Name == file }) {
			continue
		}
		if !filepath.IsLocal(file) || filepath.ToSlash(filepath.Clean(file)) != file {
			return fmt.Errorf("%s names %q for tensor %.80q, which is no file below the folder", path, file, tensor)
		}
		info, err := os.Stat(filepath.Join(dir, file))
		if err != nil {
			return fmt.Errorf("%s names %s, which is not there: download the model again", path, file)
		}
		l.files = append(l.files, &File{Name: file, Size: info.Size(), Kind: KindWeights})
	}
	return nil
}

func (l *listing) readConfig(dir string) error {
	if !slices.ContainsFunc(l.files, func(f *File) bool { return f.Kind == KindConfig }) {
		return nil
	}
	data, err := readBounded(filepath.Join(dir, configName), maxConfig)
	if err != nil {
		return err
	}
	l.config = string(data)
	return nil
}

func readBounded(path string, limit int64) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > limit {
		return nil, fmt.Errorf("%s has %d bytes, at most %d are read", path, info.Size(), limit)
	}
	return os.ReadFile(path)
}
