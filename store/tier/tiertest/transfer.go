package tiertest

import (
	"bytes"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/quire-kv/quire/store/tier"
)

func testTransfer(t *testing.T, h Harness) {
	r := newRig(t, h)
	const n, regions = 50_000, 32
	var all []held
	var wait sync.WaitGroup
	var failed atomic.Int32
	done := func(err error) {
		if err != nil {
			failed.Add(1)
		}
		wait.Done()
	}
	ops := make([]tier.Op, 0, 2*regions)
	for i := range uint64(regions) {
		x := r.must(mixed(n), i)
		all = append(all, x)
		b := bytes.Repeat([]byte{byte(i + 1)}, n)
		// Two halves that meet at an odd place.
		ops = append(ops, tier.Op{Region: x.Region, Memory: b[:777], Write: true, Done: done},
			tier.Op{Region: x.Region, At: 777, Memory: b[777:], Write: true, Done: done})
	}
	wait.Add(len(ops))
	r.d.Submit(ops)
	wait.Wait()
	if failed.Load() > 0 {
		t.Fatalf("%d of %d writes failed", failed.Load(), len(ops))
	}
	for i, x := range all {
		got := make([]byte, n-3)
		if err := r.transfer(tier.Op{Region: x.Region, At: 3, Memory: got}); err != nil {
			t.Fatalf("read: %v", err)
		}
		if !bytes.Equal(got, bytes.Repeat([]byte{byte(i + 1)}, n-3)) {
			t.Fatalf("region %d reads back other bytes", i)
		}
	}
	r.d.Submit(nil)
}

func testTransferRefusals(t *testing.T, h Harness) {
	r := newRig(t, h)
	x := r.must(mixed(10_000), 1)
	for name, op := range map[string]tier.Op{
		"past the end":    {Region: x.Region, At: 9_999, Memory: make([]byte, 2)},
		"before it":       {Region: x.Region, At: -1, Memory: make([]byte, 1)},
		"far off":         {Region: x.Region, At: 1 << 62, Memory: make([]byte, 1)},
		"slack":           {Region: x.Region, At: 10_000, Memory: make([]byte, 1), Write: true},
		"not a region":    {Region: tier.Region{Handle: x.Handle, Offset: x.Offset + 1, Bytes: 10}, Memory: make([]byte, 1)},
		"not a handle":    {Region: tier.Region{Bytes: 10}, Memory: make([]byte, 1)},
		"claims too much": {Region: tier.Region{Handle: x.Handle, Offset: x.Offset, Bytes: 1 << 20}, Memory: make([]byte, 20_000), Write: true},
	} {
		if err := r.transfer(op); err == nil {
			t.Errorf("%s: transfer succeeds", name)
		}
	}
	r.check(x)
}

// testTransferCloseRace closes the tier under submitters: each Done is called exactly once.
func testTransferCloseRace(t *testing.T, h Harness) {
	const submitters, rounds, batch, part = 4, 50, 8, 512 // each op has a part of a region to itself
	r := newRig(t, h)
	calls := make([]atomic.Int32, submitters*rounds*batch)
	var answered, submitted sync.WaitGroup
	answered.Add(len(calls))
	var regions [submitters]held
	for i := range regions {
		regions[i] = r.must(mixed(rounds*batch*part), uint64(i))
	}
	half := make(chan struct{})
	for i := range submitters {
		submitted.Go(func() {
			for round := range rounds {
				if i == 0 && round == rounds/2 {
					close(half)
				}
				ops := make([]tier.Op, batch)
				for k := range ops {
					n := (i*rounds+round)*batch + k
					at := int64(round*batch+k) * part
					ops[k] = tier.Op{Region: regions[i].Region, At: at, Memory: make([]byte, part), Write: k%2 == 0, Done: func(error) {
						calls[n].Add(1)
						answered.Done()
					}}
				}
				r.d.Submit(ops)
			}
		})
	}
	<-half
	if err := r.d.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	submitted.Wait()
	answered.Wait()
	if err := r.transfer(tier.Op{Region: regions[0].Region, Memory: make([]byte, 1)}); !errors.Is(err, tier.ErrClosed) {
		t.Errorf("transfer after close: %v", err)
	}
	for i := range calls {
		if n := calls[i].Load(); n != 1 {
			t.Fatalf("op %d was answered %d times", i, n)
		}
	}
}
