package main

import (
	"os"
	"strings"

	"github.com/quire-kv/quire/internal/suggest"
	"github.com/quire-kv/quire/namespace"
)

// maxSpecBytes bounds a spec file; the largest example is a few KiB.
const maxSpecBytes = 1 << 20

const examplePrefix = "example:"

// specText is the text of a spec: a file, "-" for standard input, or a ready-made example.
func (a *app) specText(source string) (string, error) {
	if name, ok := strings.CutPrefix(source, examplePrefix); ok {
		return exampleText(name)
	}
	if source == "-" {
		b, err := readAllBounded(a.in, "standard input", maxSpecBytes)
		return string(b), err
	}
	b, err := readBounded(source, maxSpecBytes)
	if os.IsNotExist(err) {
		return "", notFoundf("no file %s; write the path of a spec, or example:NAME with one of %s", source, strings.Join(exampleNames(), ", "))
	}
	return string(b), err
}

func exampleText(name string) (string, error) {
	text, ok := namespace.ExampleSpec(name)
	if !ok {
		hint := ""
		if near, ok := suggest.Nearest(name, exampleNames()); ok {
			hint = "did you mean example:" + near + "? "
		}
		return "", notFoundf("no example %q; %sthere are %s", name, hint, strings.Join(exampleNames(), ", "))
	}
	return string(text), nil
}

func exampleNames() []string {
	var names []string
	for _, e := range namespace.Examples() {
		names = append(names, e.Name)
	}
	return names
}
