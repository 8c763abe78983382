package namespace

import (
	"fmt"

	"github.com/quire-kv/quire/reason"
)

// Refusal is what a pure decision answers instead of changing anything.
type Refusal struct {
	Reason   reason.Reason
	Path     string // of the field that is wrong, where one is: "groups[0].components[1].bits"
	Text     string // one line: what is wrong and what to write instead
	Diff     []Difference
	Siblings []Sibling
}

// Error is one line.
func (r *Refusal) Error() string {
	if r.Path == "" {
		return fmt.Sprintf("%v: %s", r.Reason, r.Text)
	}
	return fmt.Sprintf("%v: %s: %s", r.Reason, r.Path, r.Text)
}

// Unwrap makes errors.Is(err, reason.X) work.
func (r *Refusal) Unwrap() error { return r.Reason }

func refuse(why reason.Reason, path, format string, args ...any) *Refusal {
	return &Refusal{Reason: why, Path: path, Text: fmt.Sprintf(format, args...)}
}

func invalid(path, format string, args ...any) *Refusal {
	return refuse(reason.InvalidSpec, path, format, args...)
}
