package namespace

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/quire-kv/quire/store/page"
)

// Bounds of a spec's text.
const (
	MaxSpecBytes   = 1 << 20 // a real one has 2 to 8 KiB
	maxTextBytes   = 256     // of one value: names, versions, build ids
	maxMapEntries  = 64      // options, attention backends
	maxGroups      = 64      // DeepSeek-V4 has about twelve pools
	maxComponents  = 16
	maxDecodeItems = 4096 // of any list or map in the text
)

// Parse reads a spec in YAML or JSON (which is a subset) and validates it. Errors are *Refusal with the path of the
// field and what to write instead.
func Parse(data []byte) (*Spec, error) {
	s, r := decodeSpec(data)
	if r == nil {
		r = s.validate()
	}
	if r != nil {
		return nil, r
	}
	return s, nil
}

// decodeSpec reads the structure only: what a registry stored is taken back without judging it by newer rules.
func decodeSpec(data []byte) (*Spec, *Refusal) {
	if len(data) > MaxSpecBytes {
		return nil, invalid("", "the spec has %d bytes, at most %d are read", len(data), MaxSpecBytes)
	}
	if json.Valid(data) { // YAML reads JSON, but for tabs between its words
		var compact bytes.Buffer
		_ = json.Compact(&compact, data) // valid JSON always compacts
		data = compact.Bytes()
	}
	var doc yaml.Node
	if err := yaml.Load(data, &doc); err != nil {
		return nil, invalid("", "not one YAML or JSON document: %.200s", oneLine(err.Error()))
	}
	root := &doc
	if root.Kind == yaml.DocumentNode && len(root.Content) == 1 {
		root = root.Content[0]
	}
	s := new(Spec)
	if r := decode(root, reflect.ValueOf(s).Elem(), ""); r != nil {
		return nil, r
	}
	return s, nil
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// tokenSliceKeys are engines' names for ranks that hold every n-th token of a page.
var tokenSliceKeys = []string{"dcp", "dcp_size", "cp", "cp_size", "attn_cp", "attn_cp_size", "context_parallel", "token_slice", "token_stride"}

func decode(n *yaml.Node, v reflect.Value, path string) *Refusal {
	switch {
	case n.Kind == yaml.AliasNode || n.Anchor != "":
		return invalid(path, "line %d: anchors and aliases are not read: write the value out", n.Line)
	case len(n.Content) > maxDecodeItems:
		return invalid(path, "line %d: %d items, at most %d", n.Line, len(n.Content), maxDecodeItems)
	}
	switch x := v.Addr().Interface().(type) {
	case *[]Group:
		return decodeList(n, x, path, maxGroups)
	case *[]Component:
		return decodeList(n, x, path, maxComponents)
	case *Layers:
		return decodeLayers(n, x, path)
	case *map[string]string:
		return decodeMap(n, x, path)
	}
	if v.Kind() == reflect.Struct {
		return decodeStruct(n, v, path)
	}
	return decodeLeaf(n, v, path)
}

func decodeStruct(n *yaml.Node, v reflect.Value, path string) *Refusal {
	return eachKey(n, path, func(key string, value *yaml.Node, at string) *Refusal {
		var known []string
		for i := range v.NumField() {
			name := v.Type().Field(i).Tag.Get("yaml")
			if name == key {
				return decode(value, v.Field(i), at)
			}
			known = append(known, name)
		}
		if slices.Contains(tokenSliceKeys, key) {
			return invalid(at, "line %d: token-sliced ranks (decode or attention context parallel) are not built: write pages whole in their tokens", value.Line)
		}
		return invalid(at, "line %d: unknown key: did you mean %q? (known: %s)", value.Line, nearestWord(key, known), strings.Join(known, ", "))
	})
}

// eachKey visits a mapping with unique scalar keys.
func eachKey(n *yaml.Node, path string, each func(key string, value *yaml.Node, at string) *Refusal) *Refusal {
	if n.Kind != yaml.MappingNode {
		return invalid(path, "line %d: write a mapping of keys and values here", n.Line)
	}
	seen := make(map[string]bool)
	for i := 0; i+1 < len(n.Content); i += 2 {
		k := n.Content[i]
		if k.Kind != yaml.ScalarNode || k.Anchor != "" || len(k.Value) > maxTextBytes {
			return invalid(path, "line %d: keys are plain words of at most %d bytes", k.Line, maxTextBytes)
		}
		at := join(path, printable(k.Value))
		if seen[k.Value] {
			return invalid(at, "line %d: given twice: keep one", k.Line)
		}
		seen[k.Value] = true
		if r := each(k.Value, n.Content[i+1], at); r != nil {
			return r
		}
	}
	return nil
}

// printable keeps a refused key from writing control characters to a terminal.
func printable(s string) string {
	q := strconv.Quote(s)
	return q[1 : len(q)-1]
}

func decodeList[T any](n *yaml.Node, out *[]T, path string, limit int) *Refusal {
	if n.Kind != yaml.SequenceNode {
		return invalid(path, "line %d: write a list here", n.Line)
	}
	if len(n.Content) > limit {
		return invalid(path, "line %d: %d items, at most %d", n.Line, len(n.Content), limit)
	}
	list := make([]T, len(n.Content))
	for i, item := range n.Content {
		if r := decode(item, reflect.ValueOf(&list[i]).Elem(), fmt.Sprintf("%s[%d]", path, i)); r != nil {
			return r
		}
	}
	*out = list
	return nil
}

func decodeLayers(n *yaml.Node, out *Layers, path string) *Refusal {
	items := []*yaml.Node{n}
	if n.Kind == yaml.SequenceNode {
		items = n.Content
	}
	var all Layers
	for _, item := range items {
		text, r := scalar(item, path, "layer numbers or a range such as 0-31")
		if r != nil {
			return r
		}
		l, err := ParseLayers(text)
		if err != nil {
			return invalid(path, "line %d: %v", item.Line, err)
		}
		if all = append(all, l...); len(all) > MaxLayers {
			return invalid(path, "line %d: more than %d layers", item.Line, MaxLayers)
		}
	}
	*out = all
	return nil
}

func decodeMap(n *yaml.Node, out *map[string]string, path string) *Refusal {
	m := make(map[string]string)
	r := eachKey(n, path, func(key string, value *yaml.Node, at string) *Refusal {
		text, r := scalar(value, at, "text")
		if len(m) == maxMapEntries {
			return invalid(path, "more than %d entries", maxMapEntries)
		}
		m[key] = text
		return r
	})
	if len(m) > 0 {
		*out = m
	}
	return r
}

// scalar answers the literal text of a plain value: 0.10 stays 0.10, whatever YAML makes of it.
func scalar(n *yaml.Node, path, want string) (string, *Refusal) {
	if n.Kind != yaml.ScalarNode || n.Anchor != "" {
		return "", invalid(path, "line %d: write %s here", n.Line, want)
	}
	switch n.ShortTag() {
	case "!!str", "!!int", "!!float", "!!bool", "!!timestamp":
		return n.Value, nil
	case "!!null":
		return "", invalid(path, "line %d: no value: write %s, or leave the key out", n.Line, want)
	}
	return "", invalid(path, "line %d: the tag %.40q is not read: write %s", n.Line, n.ShortTag(), want)
}

func decodeLeaf(n *yaml.Node, v reflect.Value, path string) *Refusal {
	text, r := scalar(n, path, leafWanted(v))
	if r != nil {
		return r
	}
	if isAuto(text) {
		return invalid(path, "line %d: %q is not a resolved value: write %s", n.Line, text, leafWanted(v))
	}
	switch x := v.Addr().Interface().(type) {
	case *string:
		*x = text
		return nil
	case *bool:
		*x = text == "true"
		if text != "true" && text != "false" {
			return invalid(path, "line %d: %.40q: write true or false", n.Line, text)
		}
		return nil
	case *Digest:
		d, err := ParseDigest(text)
		if err != nil {
			return invalid(path, "line %d: %v", n.Line, err)
		}
		*x = d
		return nil
	case *page.Grade:
		if *x = gradeNames[text]; *x == page.GradeInvalid {
			return invalid(path, "line %d: %.40q is not a grade: write elements, cell or whole", n.Line, text)
		}
		return nil
	}
	return decodeNumber(n, text, v, path)
}

func decodeNumber(n *yaml.Node, text string, v reflect.Value, path string) *Refusal {
	x, err := strconv.ParseUint(text, 10, v.Type().Bits())
	if err != nil || n.ShortTag() != "!!int" || strconv.FormatUint(x, 10) != text {
		return invalid(path, "line %d: %.40q is not a number that fits: write %s", n.Line, text, leafWanted(v))
	}
	v.SetUint(x)
	return nil
}

func leafWanted(v reflect.Value) string {
	switch v.Interface().(type) {
	case string:
		return "what the engine really uses, as text"
	case bool:
		return "true or false"
	case Digest:
		return "sha256: and 64 hex digits"
	case page.Grade:
		return "elements, cell or whole"
	}
	return fmt.Sprintf("a plain number below 2^%d", v.Type().Bits())
}

// isAuto finds words that stand for "whatever the engine picks": identity needs what it picked.
func isAuto(s string) bool {
	return slices.Contains([]string{"auto", "default", "automatic", "unresolved"}, strings.ToLower(strings.TrimSpace(s)))
}

// nearestWord is the known word with the smallest edit distance, the first of equals.
func nearestWord(s string, known []string) string {
	best, least := "", 1<<30
	for _, k := range known {
		if d := editDistance(s, k); d < least {
			best, least = k, d
		}
	}
	return best
}

func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
