package namespace

import (
	"embed"
	"fmt"
	"path"
	"slices"
	"strings"
)

//go:embed specs/*.yaml
var exampleFiles embed.FS

// Example is a ready-made spec with the real dimensions of a model. Its digests are examples.
type Example struct {
	Name string // "llama-3-8b"
	YAML []byte // the caller's own
}

// Examples lists the ready-made specs, sorted by name.
func Examples() []Example {
	files, _ := exampleFiles.ReadDir("specs") // embedded
	out := make([]Example, len(files))
	for i, f := range files {
		text, _ := exampleFiles.ReadFile(path.Join("specs", f.Name()))
		out[i] = Example{strings.TrimSuffix(f.Name(), ".yaml"), slices.Clone(text)}
	}
	return out
}

// ExampleSpec is one of them by name; ok is false if there is none.
func ExampleSpec(name string) (text []byte, ok bool) {
	text, err := exampleFiles.ReadFile("specs/" + name + ".yaml")
	return slices.Clone(text), err == nil
}

// ParseExample is one of them, parsed.
func ParseExample(name string) (*Spec, error) {
	text, ok := ExampleSpec(name)
	if !ok {
		return nil, fmt.Errorf("no example %s", name)
	}
	s, err := Parse(text)
	if err != nil {
		return nil, fmt.Errorf("example %s: %w", name, err)
	}
	return s, nil
}
