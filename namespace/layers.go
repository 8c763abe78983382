package namespace

import (
	"fmt"
	"strconv"
	"strings"
)

// MaxLayers bounds the layer indices of a group: ten times the deepest model in use.
const MaxLayers = 2048

// Layers are layer indices, ascending. Text: "0-4,6,8-10"; YAML and JSON also take a list of numbers and ranges.
type Layers []uint16

// LayerRange is the layers [from, to).
func LayerRange(from, to uint16) Layers {
	var l Layers
	for i := from; i < to; i++ {
		l = append(l, i)
	}
	return l
}

// String is the shortest text form.
func (l Layers) String() string {
	var b strings.Builder
	for i := 0; i < len(l); {
		j := i
		for j+1 < len(l) && l[j+1] == l[j]+1 {
			j++
		}
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(int(l[i])))
		if j > i {
			b.WriteByte('-')
			b.WriteString(strconv.Itoa(int(l[j])))
		}
		i = j + 1
	}
	return b.String()
}

// ParseLayers reads the text form. Order is kept as written: Validate judges it.
func ParseLayers(s string) (Layers, error) {
	var l Layers
	for part := range strings.SplitSeq(s, ",") {
		from, to, isRange := strings.Cut(strings.TrimSpace(part), "-")
		a, err := parseLayer(from)
		if err != nil {
			return nil, err
		}
		b := a
		if isRange {
			if b, err = parseLayer(to); err != nil {
				return nil, err
			}
			if b < a {
				return nil, fmt.Errorf("the range %q runs backwards: write %d-%d", part, b, a)
			}
		}
		if len(l)+int(b-a)+1 > MaxLayers {
			return nil, fmt.Errorf("more than %d layers", MaxLayers)
		}
		l = append(l, LayerRange(a, b+1)...)
	}
	return l, nil
}

func parseLayer(s string) (uint16, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n >= MaxLayers || strconv.FormatUint(n, 10) != s {
		return 0, fmt.Errorf("%.40q is not a layer: write numbers below %d and ranges such as 0-31", s, MaxLayers)
	}
	return uint16(n), nil
}
