package invariant

import "testing"

func TestCheck(t *testing.T) {
	Check(true, "never")
	defer func() {
		if got := recover() != nil; got != Enabled {
			t.Errorf("a failed check panicked: %v, want %v", got, Enabled)
		}
	}()
	Check(false, "slot %d", 7)
}
