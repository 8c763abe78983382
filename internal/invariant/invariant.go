// Package invariant holds assertions that are compiled in under the build tag quire_invariants or the race
// detector, and cost nothing otherwise.
package invariant

import "fmt"

// Check panics with the formatted message when invariants are Enabled and ok is false. Callers whose condition is
// dear guard it by `if invariant.Enabled`.
func Check(ok bool, format string, args ...any) {
	if Enabled && !ok {
		panic("invariant: " + fmt.Sprintf(format, args...))
	}
}
