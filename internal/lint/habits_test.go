package lint

import (
	"go/ast"
	"go/token"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// maxFileLines is where a file holds more than one concept.
const maxFileLines = 700

func TestEveryPackageSaysWhatItIsFor(t *testing.T) {
	docs := map[string]string{}
	names := map[string]string{}
	for _, s := range sources(t) {
		if s.test || s.generated {
			continue
		}
		names[s.dir] = s.file.Name.Name
		if s.file.Doc != nil {
			if docs[s.dir] != "" {
				t.Errorf("%s: package %s is documented twice", s.path, s.file.Name.Name)
			}
			docs[s.dir] = s.file.Doc.Text()
		}
	}
	for dir, name := range names {
		want := "Package " + name + " "
		if name == "main" {
			want = "Command " + dir[strings.LastIndexByte(dir, '/')+1:] + " "
		}
		first, _, _ := strings.Cut(docs[dir], ".")
		if !strings.HasPrefix(docs[dir], want) || len(strings.Fields(first)) < 5 {
			t.Errorf("%s: the package doc must begin with a sentence %q and say what the package is for", dir, want+"...")
		}
	}
}

// wellKnown methods mean what the standard library's interfaces say.
var wellKnown = []string{"Error", "Unwrap", "String", "Len", "Less", "Swap"}

func TestExportedNamesHaveComments(t *testing.T) {
	for _, s := range sources(t) {
		if s.test || s.generated || s.file.Name.Name == "main" {
			continue
		}
		for _, d := range s.file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Name.IsExported() && exportedReceiver(d) && d.Doc == nil && !(d.Recv != nil && slices.Contains(wellKnown, d.Name.Name)) {
					t.Errorf("%s: %s has no comment", s.at(d.Pos()), d.Name.Name)
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if name := undocumented(d, spec); name != "" {
						t.Errorf("%s: %s has no comment", s.at(spec.Pos()), name)
					}
				}
			}
		}
	}
}

// undocumented is the first exported name of a declaration that neither it nor its group explains.
func undocumented(group *ast.GenDecl, spec ast.Spec) string {
	switch spec := spec.(type) {
	case *ast.TypeSpec:
		if spec.Name.IsExported() && spec.Doc == nil && spec.Comment == nil && group.Doc == nil {
			return spec.Name.Name
		}
	case *ast.ValueSpec:
		if spec.Names[0].IsExported() && spec.Doc == nil && spec.Comment == nil && group.Doc == nil {
			return spec.Names[0].Name
		}
	}
	return ""
}

func exportedReceiver(d *ast.FuncDecl) bool {
	if d.Recv == nil {
		return true
	}
	kind := d.Recv.List[0].Type
	if star, ok := kind.(*ast.StarExpr); ok {
		kind = star.X
	}
	if index, ok := kind.(*ast.IndexExpr); ok {
		kind = index.X
	}
	name, ok := kind.(*ast.Ident)
	return ok && name.IsExported()
}

func TestFilesStaySmall(t *testing.T) {
	for _, s := range sources(t) {
		if n := strings.Count(s.text, "\n"); !s.generated && n > maxFileLines {
			t.Errorf("%s has %d lines, %d are the most: split it by concept", s.path, n, maxFileLines)
		}
	}
}

// timeSeams may ask the system for the time, each for its reason.
var timeSeams = map[string]string{
	"internal/clock/":                   "the clock itself",
	"cmd/quire/":                        "shows times to people",
	"internal/demo/":                    "measures what it shows",
	"internal/bench/":                   "measures",
	"namespace/registry.go":             "the default of Options.Now",
	"namespace/options.go":              "the default of Options.Now",
	"namespace/pebbleregistry/owner.go": "tells people when the owner of a directory began",
	"store/frame/deadline.go":           "deadlines of contexts and sockets are instants of the system's clock",
	"internal/auth/devca.go":            "the default of DevCA.Now: dates of certificates",
}

var timeSources = []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"}

func TestTimeComesThroughTheClock(t *testing.T) {
	for _, s := range sources(t) {
		if s.generated || strings.HasPrefix(s.path, "e2e/") {
			continue
		}
		test := s.test || anyMatches(suites, s.dir)
		s.uses("time", func(name string, at token.Pos) {
			switch {
			case test && name == "Sleep":
				t.Errorf("%s: tests outside e2e do not sleep", s.at(at))
			case !test && slices.Contains(timeSources, name) && !seam(s.path):
				t.Errorf("%s: time.%s; time comes through internal/clock", s.at(at), name)
			}
		})
	}
}

func seam(path string) bool {
	for prefix := range timeSeams {
		if strings.HasPrefix(path, prefix) {
			return true
		}
	}
	return false
}

// goFree packages start no goroutine: they are replayed from a seed.
var goFree = []string{"reason", "kernels", "store/page", "store/core", "evict"}

func TestPurePackagesStartNoGoroutine(t *testing.T) {
	for _, s := range sources(t) {
		if s.test || !slices.Contains(goFree, s.dir) {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			if g, ok := n.(*ast.GoStmt); ok {
				t.Errorf("%s: %s is pure and starts no goroutine", s.at(g.Pos()), s.dir)
			}
			return true
		})
	}
}

var caseName = regexp.MustCompile(`^TestCase_C\d+_[A-Z]`)

func TestFieldCasesAreNamedAlike(t *testing.T) {
	for _, s := range sources(t) {
		for _, d := range s.file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if ok && s.test && strings.HasPrefix(f.Name.Name, "TestCase") && !caseName.MatchString(f.Name.Name) {
				t.Errorf("%s: %s is not of the form TestCase_C17_WhatItShows", s.at(f.Pos()), f.Name.Name)
			}
		}
	}
}
