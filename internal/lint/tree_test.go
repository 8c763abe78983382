package lint

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/quire-kv/quire"

// root is the module's directory, relative to this package's.
const root = "../.."

// source is one parsed Go file.
type source struct {
	path      string // relative to the module, with slashes
	dir       string
	test      bool
	generated bool
	text      string
	file      *ast.File
	fset      *token.FileSet
}

func (s *source) at(p token.Pos) string {
	pos := s.fset.Position(p)
	return s.path + ":" + strconv.Itoa(pos.Line)
}

var generatedMark = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)

// walk calls each with every file of the module that is ours: no tools of other modules, nothing hidden.
func walk(t *testing.T, each func(path string)) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			if rel != "." && rel != ".ci" && (strings.HasPrefix(d.Name(), ".") || rel == "bin" || rel == "dist" || rel == "shared") {
				return fs.SkipDir
			}
			return nil
		}
		each(filepath.ToSlash(rel))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// sources parses every Go file of the module.
func sources(t *testing.T) []*source {
	t.Helper()
	var all []*source
	fset := token.NewFileSet()
	walk(t, func(path string) {
		if !strings.HasSuffix(path, ".go") {
			return
		}
		text, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			t.Fatal(err)
		}
		file, err := parser.ParseFile(fset, path, text, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		dir := "."
		if i := strings.LastIndexByte(path, '/'); i >= 0 {
			dir = path[:i]
		}
		all = append(all, &source{
			path: path, dir: dir, test: strings.HasSuffix(path, "_test.go"),
			generated: generatedMark.Match(text), text: string(text), file: file, fset: fset,
		})
	})
	if len(all) == 0 {
		t.Fatal("no Go files found")
	}
	return all
}

// imported is the name under which a file knows a package of the standard library, "" if it does not.
func (s *source) imported(path string) string {
	for _, i := range s.file.Imports {
		if i.Path.Value != `"`+path+`"` {
			continue
		}
		if i.Name != nil {
			return i.Name.Name
		}
		return path[strings.LastIndexByte(path, '/')+1:]
	}
	return ""
}

// uses calls each with every mention of pkg.Name in the file.
func (s *source) uses(pkg string, each func(name string, at token.Pos)) {
	local := s.imported(pkg)
	if local == "" {
		return
	}
	ast.Inspect(s.file, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if x, ok := sel.X.(*ast.Ident); ok && x.Name == local && x.Obj == nil {
			each(sel.Sel.Name, sel.Pos())
		}
		return true
	})
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
