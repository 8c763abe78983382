package lint

import (
	"go/ast"
	"go/token"
	"strings"
	"testing"
)

func TestNoInit(t *testing.T) {
	for _, s := range sources(t) {
		if s.generated {
			continue
		}
		for _, d := range s.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == "init" {
				t.Errorf("%s: no init: what a package needs comes in through a constructor", s.at(f.Pos()))
			}
		}
	}
}

// TestNoPackageState allows package variables that are constants in all but name: errors, tables, compiled patterns.
// It finds those that change: of a kind that exists to change, assigned to, or given away by their address.
func TestNoPackageState(t *testing.T) {
	byDir := map[string][]*source{}
	for _, s := range sources(t) {
		if !s.generated && !s.test {
			byDir[s.dir] = append(byDir[s.dir], s)
		}
	}
	for _, files := range byDir {
		vars := map[string]bool{}
		for _, s := range files {
			for _, spec := range packageVars(s) {
				for _, name := range spec.Names {
					vars[name.Name] = true
				}
				if kind := changing(spec); kind != "" && !embedded(s, spec) {
					t.Errorf("%s: %s is package state (%s)", s.at(spec.Pos()), spec.Names[0].Name, kind)
				}
			}
		}
		for _, s := range files {
			assigned(s, vars, func(name string, at token.Pos) {
				t.Errorf("%s: package variable %s is changed here", s.at(at), name)
			})
		}
	}
}

// embedded reports whether the variable is a file built in.
func embedded(s *source, v *ast.ValueSpec) bool {
	line := s.fset.Position(v.Pos()).Line
	lines := strings.Split(s.text, "\n")
	return line >= 2 && strings.HasPrefix(lines[line-2], "//go:embed ")
}

func packageVars(s *source) []*ast.ValueSpec {
	var out []*ast.ValueSpec
	for _, d := range s.file.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.VAR {
			continue
		}
		for _, spec := range g.Specs {
			if v := spec.(*ast.ValueSpec); v.Names[0].Name != "_" {
				out = append(out, v)
			}
		}
	}
	return out
}

// changing names the kind of a variable that only makes sense if it changes; "" for others.
func changing(v *ast.ValueSpec) string {
	switch kind := v.Type.(type) {
	case *ast.ChanType:
		return "a channel"
	case *ast.SelectorExpr:
		if x, ok := kind.X.(*ast.Ident); ok && (x.Name == "sync" || x.Name == "atomic") {
			return x.Name + "." + kind.Sel.Name
		}
	}
	for _, value := range v.Values {
		if call, ok := value.(*ast.CallExpr); ok {
			if f, ok := call.Fun.(*ast.Ident); ok && (f.Name == "make" || f.Name == "new") {
				return f.Name
			}
		}
	}
	if v.Type != nil && len(v.Values) == 0 {
		return "no value"
	}
	return ""
}

// assigned calls found for each place that changes one of vars.
func assigned(s *source, vars map[string]bool, found func(string, token.Pos)) {
	report := func(e ast.Expr) {
		id := base(e)
		if id == nil || !vars[id.Name] {
			return
		}
		// The parser resolves names within a file: an object without a package-level declaration is a local one.
		if id.Obj != nil && s.file.Scope.Lookup(id.Name) != id.Obj {
			return
		}
		found(id.Name, e.Pos())
	}
	ast.Inspect(s.file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			if n.Tok != token.DEFINE {
				for _, left := range n.Lhs {
					report(left)
				}
			}
		case *ast.IncDecStmt:
			report(n.X)
		case *ast.UnaryExpr:
			if _, whole := n.X.(*ast.Ident); whole && n.Op == token.AND {
				report(n.X)
			}
		}
		return true
	})
}

// base is x of x, x.f, x[i] and *x.
func base(e ast.Expr) *ast.Ident {
	for {
		switch x := e.(type) {
		case *ast.Ident:
			return x
		case *ast.SelectorExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.StarExpr:
			e = x.X
		case *ast.ParenExpr:
			e = x.X
		default:
			return nil
		}
	}
}

// notes that a reader of the finished thing must never meet, in any text file.
func notes() []string {
	return []string{"TO" + "DO", "FIX" + "ME", "XX" + "X:", "HA" + "CK:", "GU" + "ESS", "/wo" + "rk/", "../sha" + "red", "un" + "built"}
}

func TestNoLooseEnds(t *testing.T) {
	walk(t, func(path string) {
		text := textOf(t, path)
		for _, note := range notes() {
			if i := strings.Index(text, note); i >= 0 {
				t.Errorf("%s:%d: %q is a note to oneself", path, 1+strings.Count(text[:i], "\n"), note)
			}
		}
	})
}
