package daemon

import "runtime/debug"

// collectorPercent lets a server's Go heap grow to about 70 MiB between collections. Pages and index are off that
// heap, what lives on it is a few MiB: at Go's default of 100 it would be collected tens of times a second under load,
// which costs 5 % of the CPU; this costs half a percent.
const collectorPercent = 1600

// RareCollections sets Go's collector up for a process that is a server and little else. An operator's GOGC stays.
func RareCollections(getenv func(string) string) {
	if getenv("GOGC") == "" {
		debug.SetGCPercent(collectorPercent)
	}
}
