//go:build !linux

package doctor

// machine has nothing to look at where no server runs.
func (r *Report) machine() { r.add("machine", Note, "the server runs on Linux alone") }
