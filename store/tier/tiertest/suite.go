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
	for _, c := range []struct {
		name string
		test func(*testing.T, Harness)
	}{
		{"AllocFreeLookup", testAllocFreeLookup},
		{"Alignment", testAlignment},
		{"StableUntilFree", testStableUntilFree},
		{"Refusals", testRefusals},
		{"Misuse", testMisuse},
		{"UsageExact", testUsageExact},
		{"FullThenFree", testFullThenFree},
		{"Case_C25_TenTimesTheCapacity", testTenTimes},
		{"ClassesDoNotMix", testClassesDoNotMix},
		{"ReturnsToEmpty", testReturnsToEmpty},
		{"Compact", testCompact},
		{"CompactPromisesOnce", testCompactPromisesOnce},
		{"CompactFeedsAnotherClass", testCompactFeedsAnotherClass},
		{"Keep", testKeep},
		{"Transfer", testTransfer},
		{"TransferRefusals", testTransferRefusals},
		{"TransferCloseRace", testTransferCloseRace},
		{"Closed", testClosed},
		{"Concurrent", testConcurrent},
		{"Model", testModel},
		{"FaultAtEveryCall", testFaultAtEveryCall},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, h) })
	}
}
