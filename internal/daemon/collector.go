package daemon

// ballastBytes lets a server's Go heap grow by as much between collections. Pages and index are off that heap, what lives
// on it is a few MiB: at Go's pace it would be collected tens of times a second under load, which costs 5 % of the CPU;
// this costs half a percent.
const ballastBytes = 64 << 20

// RareCollections sets Go's collector up for a process that is a server and little else: memory that is never touched, and so
// takes none of the machine's, counts as live as long as the caller keeps it alive. So the heap takes at most that much
// beyond twice what lives on it, however large that is. An operator's GOGC stays as it is.
func RareCollections(getenv func(string) string) (ballast []byte) {
	if getenv("GOGC") != "" {
		return nil
	}
	return make([]byte, ballastBytes)
}
