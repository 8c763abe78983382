package daemon

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/quire-kv/quire/internal/suggest"
)

// envPrefix begins the environment variables of fields.
const envPrefix = "QUIRE_"

// maxFileBytes bounds the config file: a thousand times what all keys need.
const maxFileBytes = 1 << 20

// Sources are where values come from. One rule: a flag beats the environment, which beats the file, which beats the
// default.
type Sources struct {
	File  string            // path; empty: none
	Env   []string          // as os.Environ gives it
	Flags map[string]string // by key, only those that were written
}

// Loaded is a config before its defaults, with the origin of each value that was set.
type Loaded struct {
	Config Config
	Origin map[string]string // by key: "flag --memory", "environment QUIRE_MEMORY", "file quire.yaml, line 3"
	// Warnings tell of QUIRE_ variables that set nothing. They are no errors: a container platform makes variables of
	// that form for every service called quire.
	Warnings []string
}

// Load reads all sources. Unknown keys, values that do not parse and an unreadable file are errors that say where and
// what to write.
func Load(s Sources) (*Loaded, error) {
	l := &loader{fields: Fields(), out: &Loaded{Origin: map[string]string{}}}
	if s.File != "" {
		if err := l.file(s.File); err != nil {
			return nil, err
		}
	}
	if err := l.env(s.Env); err != nil {
		return nil, err
	}
	for _, f := range l.fields {
		if text, ok := s.Flags[f.Key]; ok {
			if err := l.set(f, text, "flag --"+f.Flag()); err != nil {
				return nil, err
			}
		}
	}
	return l.out, nil
}

type loader struct {
	fields []Field
	out    *Loaded
}

func (l *loader) set(f Field, text, origin string) error {
	if err := f.value(&l.out.Config).set(text); err != nil {
		return fmt.Errorf("%s: %s: %w", origin, f.Key, err)
	}
	l.out.Origin[f.Key] = origin
	return nil
}

func (l *loader) find(key string) (Field, bool) {
	i := slices.IndexFunc(l.fields, func(f Field) bool { return f.Key == key })
	if i < 0 {
		return Field{}, false
	}
	return l.fields[i], true
}

// otherEnv are the variables of the command line itself.
func otherEnv() []string {
	return []string{"QUIRE_CONFIG", "QUIRE_SERVER", "QUIRE_TOKEN_FILE", "QUIRE_CA", "QUIRE_CERT", "QUIRE_KEY"}
}

func (l *loader) env(environ []string) error {
	for _, pair := range environ {
		name, text, _ := strings.Cut(pair, "=")
		rest, ours := strings.CutPrefix(name, envPrefix)
		if !ours || slices.Contains(otherEnv(), name) {
			continue
		}
		f, ok := l.find(strings.ToLower(rest))
		if !ok {
			l.out.Warnings = append(l.out.Warnings, "environment variable "+name+" sets nothing"+l.nearest(strings.ToLower(rest), func(f Field) string { return f.Env() }))
			continue
		}
		if err := l.set(f, text, "environment "+name); err != nil {
			return err
		}
	}
	slices.Sort(l.out.Warnings)
	return nil
}

// nearest is "; did you mean X?" or nothing.
func (l *loader) nearest(key string, name func(Field) string) string {
	near, ok := suggest.Nearest(key, keys(l.fields))
	if !ok {
		return ""
	}
	f, _ := l.find(near)
	return "; did you mean " + name(f) + "?"
}

func (l *loader) file(path string) error {
	data, err := readBounded(path)
	if err != nil {
		return fmt.Errorf("read config: %w", err)
	}
	root, err := parseFile(data)
	if err != nil {
		return fmt.Errorf("config %s: %w", path, err)
	}
	for i := 0; root != nil && i+1 < len(root.Content); i += 2 {
		if err := l.entry(path, root.Content[i], root.Content[i+1]); err != nil {
			return err
		}
	}
	return nil
}

// entry sets one key of the file.
func (l *loader) entry(path string, k, v *yaml.Node) error {
	origin := fmt.Sprintf("file %s, line %d", path, k.Line)
	f, ok := l.find(k.Value)
	if !ok {
		return fmt.Errorf("%s: unknown key %q%s", origin, k.Value, l.nearest(k.Value, func(f Field) string { return f.Key }))
	}
	if v.Kind != yaml.ScalarNode {
		return fmt.Errorf("%s: %s must be one value, not a list or a map", origin, f.Key)
	}
	return l.set(f, v.Value, origin)
}

// parseFile answers the top mapping, nil for an empty file.
func parseFile(data []byte) (*yaml.Node, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return nil, err
	}
	if len(doc.Content) == 0 || doc.Content[0].Tag == "!!null" {
		return nil, nil
	}
	root := doc.Content[0]
	if root.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("line %d: want lines of the form key: value", root.Line)
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(root.Content); i += 2 {
		k := root.Content[i]
		if first, twice := seen[k.Value]; twice {
			return nil, fmt.Errorf("line %d: %q is set already in line %d", k.Line, k.Value, first)
		}
		seen[k.Value] = k.Line
	}
	return root, nil
}

func readBounded(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var b bytes.Buffer
	n, err := io.Copy(&b, io.LimitReader(f, maxFileBytes+1))
	if err != nil {
		return nil, err
	}
	if n > maxFileBytes {
		return nil, fmt.Errorf("%s is larger than %d bytes", path, maxFileBytes)
	}
	return b.Bytes(), nil
}

// Resolve is the config with every default filled, and notes where the default of memory comes from: source, which has
// availableBytes.
func (l *Loaded) Resolve(availableBytes uint64, source string) Config {
	if l.Config.MemoryBytes == 0 {
		l.Origin["memory"] = fmt.Sprintf("default: %.0f %% of %d MiB (%s)", 100*memoryShare, availableBytes>>20, source)
	}
	return l.Config.Resolve(availableBytes)
}

// Describe prints a resolved config as a file that would give the same one, each line with its origin. Secrets are
// shown as "(set)".
func (l *Loaded) Describe(w io.Writer, resolved *Config) error {
	for _, f := range Fields() {
		origin := l.Origin[f.Key]
		if origin == "" {
			origin = "default"
		}
		shown, err := yamlScalar(f.value(resolved).get())
		if err != nil {
			return fmt.Errorf("print %s: %w", f.Key, err)
		}
		if f.Secret && f.value(resolved).get() != "" {
			shown = "(set)"
		}
		if _, err := fmt.Fprintf(w, "%-34s # %s\n", f.Key+": "+shown, origin); err != nil {
			return err
		}
	}
	return nil
}

// yamlScalar is text as a YAML value of one line.
func yamlScalar(text string) (string, error) {
	node := yaml.Node{Kind: yaml.ScalarNode, Value: text}
	if text == "" || strings.ContainsAny(text, "\n\r") {
		node.Style = yaml.DoubleQuotedStyle
	}
	b, err := yaml.Marshal(&node)
	return strings.TrimRight(string(b), "\n"), err
}
