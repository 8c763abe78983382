package page

import "fmt"

// Grade says how far the bytes of a page may be cut and permuted.
type Grade uint16

// The grades.
const (
	GradeInvalid Grade = iota
	Elements           // any element order is a permutation of any other
	Cell               // views by head and layer; the inside of a cell does not convert
	Whole              // nothing can be cut: exact view only
)

// String is the name used in specs; "invalid" for an unknown grade.
func (g Grade) String() string {
	switch g {
	case Elements:
		return "elements"
	case Cell:
		return "cell"
	case Whole:
		return "whole"
	}
	return "invalid"
}

// CanServe says whether a reader's view can be taken out of an extent of view stored.
func (g Grade) CanServe(stored, view View) bool {
	switch g {
	case Elements, Cell:
		return stored.Contains(view)
	case Whole:
		return stored == view
	}
	return false
}

// Convert says whether bytes of packing stored may be handed out as packing wanted: always under Elements, where any
// declared order is a permutation of any other; otherwise only as they are. ErrUnsupported if not.
func (g Grade) Convert(stored, wanted [32]byte) error {
	if g == Elements || stored == wanted && (g == Cell || g == Whole) {
		return nil
	}
	return fmt.Errorf("convert packing %.8x to %.8x under grade %v: %w", stored, wanted, g, ErrUnsupported)
}

// MarshalText is String; an unknown grade is ErrInvalid.
func (g Grade) MarshalText() ([]byte, error) {
	if g < Elements || g > Whole {
		return nil, fmt.Errorf("packing grade %d: %w", uint16(g), ErrInvalid)
	}
	return []byte(g.String()), nil
}

// UnmarshalText parses the form of String.
func (g *Grade) UnmarshalText(text []byte) error {
	for _, known := range [...]Grade{Elements, Cell, Whole} {
		if string(text) == known.String() {
			*g = known
			return nil
		}
	}
	return fmt.Errorf("packing grade %.32q, want elements, cell or whole: %w", text, ErrInvalid)
}
