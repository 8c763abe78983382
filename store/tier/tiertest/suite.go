// Package tiertest is the suite that every tier passes, bare and with faults, and the decorator that injects them.
package tiertest

import (
	"testing"

	"github.com/quire-kv/quire/store/tier"
)

// Harness says how to make the tier under test.
type Harness struct {
	// New makes an empty tier with a hard bound of capacity bytes. The suite closes it.
	New func(t testing.TB, capacity int64) tier.Driver
	// CapacityBytes of the tiers that the suite asks for. Default 16 MiB.
	CapacityBytes int64
	// Transient says that Alloc may answer ErrFull though there is room (faults are being injected): the suite
	// then tries again, up to maxTransient times.
	Transient bool
	// Reopen opens what a durable tier would leave if the process ended now; d may stay open, and the suite closes it. The
	// tier that it answers is to be recovered. nil: the tier is not durable. A durable tier is taken to be a log: slabs
	// mix classes, and space returns with a whole slab, by its last Free or by Compact.
	Reopen func(t testing.TB, d tier.Driver) tier.Durable
	// Slow says that each write waits for a device: the longest tests are left out.
	Slow bool
}

const (
	defaultCapacityBytes = 16 << 20
	maxTransient         = 16
)

// Run runs the suite. It sleeps nowhere; the randomised parts print what replays them.
func Run(t *testing.T, h Harness) {
	if h.CapacityBytes == 0 {
		h.CapacityBytes = defaultCapacityBytes
	}
	run := func(tests []test) {
		for _, c := range tests {
			if h.Slow && c.long {
				continue
			}
			t.Run(c.name, func(t *testing.T) { c.run(t, h) })
		}
	}
	run(everywhere)
	if h.Reopen == nil {
		run(inMemory)
	} else {
		run(durable)
	}
}

type test struct {
	name string
	run  func(*testing.T, Harness)
	long bool
}

var (
	everywhere = []test{
		{"AllocFreeLookup", testAllocFreeLookup, false},
		{"Alignment", testAlignment, false},
		{"StableUntilFree", testStableUntilFree, false},
		{"Refusals", testRefusals, false},
		{"Misuse", testMisuse, false},
		{"UsageExact", testUsageExact, false},
		{"Case_C25_TenTimesTheCapacity", testTenTimes, true},
		{"ReturnsToEmpty", testReturnsToEmpty, true},
		{"Compact", testCompact, false},
		{"CompactFeedsAnotherClass", testCompactFeedsAnotherClass, false},
		{"TransferRefusals", testTransferRefusals, false},
		{"TransferCloseRace", testTransferCloseRace, false},
		{"Closed", testClosed, false},
		{"Concurrent", testConcurrent, true},
		{"Model", testModel, true},
		{"FaultAtEveryCall", testFaultAtEveryCall, false},
	}
	// inMemory is what holds where a freed place serves again at once.
	inMemory = []test{
		{"FullThenFree", testFullThenFree, false},
		{"ClassesDoNotMix", testClassesDoNotMix, false},
		{"CompactPromisesOnce", testCompactPromisesOnce, false},
		{"Keep", testKeep, false},
		{"Transfer", testTransfer, false},
	}
	durable = []test{
		{"FullThenCompact", testFullThenCompact, false},
		{"KeepInLog", testKeepInLog, false},
		{"WriteOnce", testWriteOnce, false},
		{"ReadParts", testReadParts, false},
		{"Recover", testRecover, false},
		{"RecoverOwners", testRecoverOwners, false},
		{"BuryAndRetire", testBuryAndRetire, false},
	}
)
