package disk

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/quire-kv/quire/store/page"
)

const testSecret = 0x1234_5678_9ABC_DEF0

func sealed(f frame, body []byte) []byte {
	b := append(make([]byte, frameBytes), body...)
	f.bodyBytes = uint32(len(body))
	f.bytes = max(f.bytes, uint64(len(b)))
	f.seal(b, testSecret)
	return b
}

func TestFrame(t *testing.T) {
	want := frame{kind: kindCommit, number: 7, seq: 9, synced: 8, block: 3, bytes: 5000, expiry: 77, lineage: 2}
	b := sealed(want, []byte("header"))
	want.bodyBytes = 6
	var f frame
	if err := decodeFrame(&f, b, 7, 3, testSecret); err != nil || f != want {
		t.Fatalf("%+v, %v; want %+v", f, err, want)
	}
	if n, err := frameExtent(b); err != nil || n != len(b) {
		t.Errorf("extent %d, %v", n, err)
	}
	for name, c := range map[string]struct {
		number uint64
		block  uint32
		secret uint64
		want   error
	}{"file": {8, 3, testSecret, errMisplaced}, "block": {7, 4, testSecret, errMisplaced}, "secret": {7, 3, testSecret + 1, errChecksum}} {
		if err := decodeFrame(&f, b, c.number, c.block, c.secret); !errors.Is(err, c.want) {
			t.Errorf("other %s: %v", name, err)
		}
	}
	for i := range b {
		for bit := range 8 {
			c := bytes.Clone(b)
			c[i] ^= 1 << bit
			if decodeFrame(&f, c, 7, 3, testSecret) == nil {
				t.Fatalf("bit %d of byte %d is not covered", bit, i)
			}
		}
	}
}

func TestLabel(t *testing.T) {
	want := label{kind: fileJournal, identity: identity{[16]byte{1, 2}, 3}, number: 4, bytes: 5}
	b := make([]byte, blockBytes)
	want.encode(b)
	if got, err := decodeLabel(b); err != nil || got != want {
		t.Fatalf("%+v, %v", got, err)
	}
	for i := range b {
		c := bytes.Clone(b)
		c[i] ^= 4
		if _, err := decodeLabel(c); err == nil {
			t.Fatalf("byte %d is not covered", i)
		}
	}
}

func TestEntries(t *testing.T) {
	ended := []grave{{1, 2}, {1 << 60, 1<<27 - 1}}
	var b []byte
	for _, g := range ended {
		b = g.append(b)
	}
	if got := slices.Collect(graves(b)); !slices.Equal(got, ended) {
		t.Errorf("graves %v", got)
	}
	retired := []retirement{{epochID{page.NamespaceID{1}, 5}, 9}, {epochID{page.NamespaceID{2}, 1 << 50}, 10}}
	b = nil
	for _, r := range retired {
		b = r.append(b)
	}
	if got := slices.Collect(retirements(b)); !slices.Equal(got, retired) {
		t.Errorf("retirements %v", got)
	}
	got := map[uint32]string{}
	b = appendDefinition(appendDefinition(nil, 1, "one"), 2, "")
	if err := definitions(b, func(id uint32, s string) { got[id] = s }); err != nil || len(got) != 2 || got[1] != "one" {
		t.Errorf("definitions %v, %v", got, err)
	}
	if err := definitions(b[:len(b)-1], func(uint32, string) {}); err == nil {
		t.Error("a cut definition passes")
	}
}

func TestNames(t *testing.T) {
	for _, name := range []string{segmentName(0x1F), journalName(1 << 63)} {
		number, kind, ok := parseName(name)
		if !ok || name != map[fileKind]string{fileSegment: segmentName(number), fileJournal: journalName(number)}[kind] {
			t.Errorf("%s: %x %d %v", name, number, kind, ok)
		}
	}
	for _, name := range []string{"", "LOCK", "1f.seg", "000000000000001F.seg", "000000000000001f.segx", "000000000000001f.old", "x00000000000001f.seg"} {
		if _, _, ok := parseName(name); ok {
			t.Errorf("%q is taken for a file of the tier", name)
		}
	}
}

// FuzzDecodeFrame: no bytes make the decoders panic or read past what they were given; what passes was sealed with the
// secret, so a decoded frame seals to the same bytes.
func FuzzDecodeFrame(f *testing.F) {
	f.Add(sealed(frame{kind: kindCommit, number: 1, block: 1, bytes: 9000}, make([]byte, 500)))
	f.Add(sealed(frame{kind: kindBury, number: 1, block: 1}, grave{1, 2}.append(nil)))
	f.Add(make([]byte, frameBytes))
	f.Add(make([]byte, blockBytes))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = decodeLabel(b)
		for range graves(b) {
			continue
		}
		for range retirements(b) {
			continue
		}
		_ = definitions(b, func(uint32, string) {})
		if len(b) < frameBytes {
			return
		}
		n, err := frameExtent(b)
		if err != nil || n > len(b) {
			return
		}
		var x frame
		if decodeFrame(&x, b, 1, 1, testSecret) != nil {
			// Sealed as it is, it must come out as it went in.
			x = frame{kind: kindCommit, number: 1, block: 1, bytes: uint64(n), bodyBytes: uint32(n - frameBytes)}
			b = bytes.Clone(b)
			x.seal(b, testSecret)
			var y frame
			if err := decodeFrame(&y, b, 1, 1, testSecret); err != nil || x != y {
				t.Fatalf("%+v decodes to %+v, %v", x, y, err)
			}
			return
		}
		again := bytes.Clone(b)
		x.seal(again, testSecret)
		if !bytes.Equal(again, b) {
			t.Fatal("a frame that decodes seals to other bytes")
		}
	})
}
