package host

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/tier"
)

const provenanceBytes = 128 // of a usual writer

// wasteRow is one line of the table in the package doc.
func wasteRow(name string, heads, layers, tokenCellBytes, tokens int) string {
	v := page.View{H1: uint16(heads), L1: uint16(layers)}
	cell := tokenCellBytes * tokens
	payload := int64(heads * layers * cell)
	header := int64(page.EncodedHeaderBytes(v, uint32(cell), provenanceBytes))
	region := tier.RoundUp(payload + header)
	percent := func(n int64) float64 { return 100 * float64(n) / float64(payload) }
	return fmt.Sprintf("//\t%-36s %9d %9d %9d %8.2f%% %11.2f%%", fmt.Sprintf("%s, %d tokens", name, tokens),
		payload, header, region, percent(region-payload-header), percent(slotMetadata+region/pageTableFactor))
}

func TestWasteIsDocumented(t *testing.T) {
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range []struct {
		name                          string
		heads, layers, tokenCellBytes int
	}{
		{"SmolLM2-135M", 3, 30, 256},
		{"Llama-3-8B", 8, 32, 512},
		{"Llama-3-8B, a TP8 rank", 1, 32, 512},
		{"Llama-3-70B", 8, 80, 512},
		{"Llama-3-70B, a TP8 rank", 1, 80, 512},
		{"DeepSeek-V3 (MLA)", 1, 61, 1152},
	} {
		for _, tokens := range []int{16, 64, 256} {
			if row := wasteRow(m.name, m.heads, m.layers, m.tokenCellBytes, tokens); !strings.Contains(string(doc), row+"\n") {
				t.Errorf("the package doc lacks this row:\n%s", row)
			}
		}
	}
}

// TestWasteOfFreshSlabs: a slab of fresh memory has no tail, whatever the size of its slots.
func TestWasteOfFreshSlabs(t *testing.T) {
	d := newTier(t, Options{CapacityBytes: 256 << 20, memory: &fakeMemory{}})
	defer d.Close()
	for classBytes := int64(tier.Align); classBytes < 20<<20; classBytes += classBytes/3&^(tier.Align-1) + tier.Align {
		for _, due := range []int64{firstSlabBytes, d.slabBytes} {
			size := d.sizeWithin(1<<40, sized(classBytes), max(1, due/classBytes))
			if size%classBytes != 0 || size > max(due, classBytes) || size < due/2 {
				t.Errorf("a slab of %d bytes that is due for slots of %d is cut to %d", due, classBytes, size)
			}
		}
	}
}
