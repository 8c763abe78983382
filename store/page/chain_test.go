package page

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"testing"
)

// vectors mirrors testdata/hash_vectors.json, which other languages share.
type vectors struct {
	SGLang struct {
		PageTokens int `json:"page_tokens"`
		Chains     []struct {
			Name      string
			Bigram    bool
			ExtraKey  *string `json:"extra_key"`
			CacheSalt *string `json:"cache_salt"`
			Seed      hexBytes
			Tokens    []uint32
			Digests   []hexBytes
		}
	}
	VLLM struct {
		None []struct {
			Algorithm, Seed string
			CBOR, Hash      hexBytes
		}
		Blocks []vllmVector
	}
	NotComputed []struct{ Algorithm string } `json:"not_computed"`
	Scope       []struct {
		Name, Salt string
		Adapters   []hexBytes
		Scope      hexBytes
	}
}

type vllmVector struct {
	Name, Algorithm string
	Parent          hexBytes
	Tokens          []uint32
	Untagged        bool
	LoRA            *struct{ Name, Path string }
	CacheSalt       string `json:"cache_salt"`
	Images          []struct {
		ID     string
		Offset int // from the start of the block
	}
	EmbedDigest hexBytes `json:"embed_digest"`
	CBOR, Hash  hexBytes
	ExtraCBOR   hexBytes `json:"extra_cbor"`
}

type hexBytes []byte

func (h *hexBytes) UnmarshalText(t []byte) (err error) {
	*h, err = hex.DecodeString(string(t))
	return err
}

func loadVectors(t *testing.T) (v vectors) {
	t.Helper()
	b, err := os.ReadFile("testdata/hash_vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func algorithmOf(t *testing.T, name string) VLLMAlgorithm {
	t.Helper()
	for _, a := range []VLLMAlgorithm{SHA256CBOR, XXHashCBOR} {
		if a.String() == name {
			return a
		}
	}
	t.Fatalf("no algorithm %q", name)
	return 0
}

func TestSGLangVectors(t *testing.T) {
	v := loadVectors(t).SGLang
	if len(v.Chains) != 5 {
		t.Fatalf("%d chains", len(v.Chains))
	}
	for _, c := range v.Chains {
		t.Run(c.Name, func(t *testing.T) {
			chain, err := NewSGLangChain(v.PageTokens, c.Bigram)
			if err != nil {
				t.Fatal(err)
			}
			seed, ok := SGLangSeed(c.ExtraKey, c.CacheSalt)
			if ok != (len(c.Seed) > 0) || ok && !bytes.Equal(seed[:], c.Seed) {
				t.Fatalf("seed %x %v, want %x", seed, ok, c.Seed)
			}
			if ok {
				if err := chain.Reset(seed[:]); err != nil {
					t.Fatal(err)
				}
			}
			want := bytes.Join(asSlices(c.Digests), nil)
			if got := chain.Append(nil, c.Tokens); !bytes.Equal(got, want) {
				t.Fatalf("got %x, want %x", got, want)
			}
		})
	}
}

func asSlices(h []hexBytes) (s [][]byte) {
	for _, b := range h {
		s = append(s, b)
	}
	return s
}

func TestVLLMVectors(t *testing.T) {
	v := loadVectors(t)
	if len(v.VLLM.None) != 4 || len(v.VLLM.Blocks) != 14 || len(v.NotComputed) != 1 || v.NotComputed[0].Algorithm != "sha256" {
		t.Fatal("vectors are missing")
	}
	for _, n := range v.VLLM.None {
		if got := appendText(nil, n.Seed); !bytes.Equal(got, n.CBOR) {
			t.Errorf("seed %q: cbor %x, want %x", n.Seed, got, n.CBOR)
		}
		if got := algorithmOf(t, n.Algorithm).NoneHash(n.Seed); !bytes.Equal(got, n.Hash) {
			t.Errorf("seed %q: %x, want %x", n.Seed, got, n.Hash)
		}
	}
	for _, b := range v.VLLM.Blocks {
		t.Run(b.Name, func(t *testing.T) { b.run(t) })
	}
}

func (b *vllmVector) run(t *testing.T) {
	c, err := NewVLLMChain(VLLMContract{Algorithm: algorithmOf(t, b.Algorithm), BlockTokens: len(b.Tokens), Untagged: b.Untagged})
	if err != nil {
		t.Fatal(err)
	}
	r := VLLMRequest{CacheSalt: b.CacheSalt}
	if b.LoRA != nil {
		r.LoRA = &VLLMLoRA{b.LoRA.Name, b.LoRA.Path}
	}
	if len(b.EmbedDigest) > 0 {
		r.EmbedDigests = [][32]byte{[32]byte(b.EmbedDigest)}
	}
	for _, m := range b.Images {
		if m.Offset < 0 {
			r.FirstBlock = 1
		}
		r.Images = append(r.Images, VLLMImage{m.ID, r.FirstBlock*len(b.Tokens) + m.Offset, len(b.Tokens) + 1})
	}
	if c.none = b.Parent; r.FirstBlock > 0 {
		r.Parent = b.Parent
	}
	if err := c.Reset(r); err != nil {
		t.Fatal(err)
	}
	if got := c.Append(nil, b.Tokens); !bytes.Equal(got, b.Hash) {
		t.Errorf("hash %x, want %x", got, b.Hash)
	}
	if err := c.Reset(r); err != nil {
		t.Fatal(err)
	}
	if extra := c.appendExtra(nil); len(b.ExtraCBOR) > 0 && !bytes.Equal(extra, b.ExtraCBOR) {
		t.Errorf("extra %x, want %x", extra, b.ExtraCBOR)
	}
	c.Append(nil, b.Tokens[:len(b.Tokens)-1])
	full := c.appendExtra(appendHead(c.buf, cborUint, uint64(b.Tokens[len(b.Tokens)-1])))
	if len(b.CBOR) > 0 && !bytes.Equal(full, b.CBOR) {
		t.Errorf("cbor %x, want %x", full, b.CBOR)
	}
}

func TestScopeVectors(t *testing.T) {
	seen := map[Scope]string{}
	for _, s := range loadVectors(t).Scope {
		var ads []AdapterDigest
		for _, a := range s.Adapters {
			ads = append(ads, AdapterDigest(a))
		}
		got := MakeScope(ads, s.Salt)
		if !bytes.Equal(got[:], s.Scope) {
			t.Errorf("%s: %v, want %x", s.Name, got, s.Scope)
		}
		if other, ok := seen[got]; ok {
			t.Errorf("%s and %s have one scope", s.Name, other)
		}
		seen[got] = s.Name
	}
	if len(seen) != 6 {
		t.Fatalf("%d scopes", len(seen))
	}
}

// An adapter and a salt of the same bytes, tokens and engine hash the same: no cross hit, whatever the split.
func TestCase_C4_AdapterIsNoSalt(t *testing.T) {
	var x AdapterDigest
	copy(x[:], bytes.Repeat([]byte("x"), len(x)))
	scopes := []Scope{
		{}, MakeScope([]AdapterDigest{x}, ""), MakeScope(nil, string(x[:])), MakeScope(nil, "x"),
		MakeScope([]AdapterDigest{x, x}, ""), MakeScope([]AdapterDigest{x}, string(x[:])), MakeScope(nil, string(x[:])+string(x[:])),
		MakeScope([]AdapterDigest{{}}, ""),
	}
	keys := map[Key]int{}
	for i, s := range scopes {
		k := Key{Family: Family{Epoch: 1, Scope: s}}
		if j, ok := keys[k]; ok {
			t.Errorf("scopes %d and %d are equal", i, j)
		}
		keys[k] = i
	}
}

// The branch-free encoder equals the plain one at every change of length.
func TestTokenCBOR(t *testing.T) {
	var tokens []uint32
	for shift := range 33 {
		for d := -2; d <= 2; d++ {
			tokens = append(tokens, uint32(1<<shift+d))
		}
	}
	tokens = append(tokens, 22, 23, 24, 25)
	var want []byte
	for _, tok := range tokens {
		want = appendHead(want, cborUint, uint64(tok))
	}
	room := make([]byte, 0, cborMaxUint32*len(tokens)+cborSlack)
	if got := appendTokens(room, tokens); !bytes.Equal(got, want) {
		t.Fatalf("got %x\nwant %x", got, want)
	}
}

func TestNarrow(t *testing.T) {
	got, err := Narrow(nil, []int64{0, 1, 1<<32 - 1})
	if err != nil || len(got) != 3 || got[2] != 1<<32-1 {
		t.Fatal(got, err)
	}
	for _, wide := range []int64{-1, 1 << 32, -1 << 63} {
		if got, err := Narrow(nil, []int64{7, wide}); !errors.Is(err, ErrWideToken) || len(got) != 0 {
			t.Errorf("%d: %v %v", wide, got, err)
		}
	}
}

func TestChainRefusals(t *testing.T) {
	for _, n := range []int{0, -1, MaxPageTokens + 1} {
		if _, err := NewSGLangChain(n, false); !errors.Is(err, ErrInvalid) {
			t.Errorf("sglang pages of %d: %v", n, err)
		}
		if _, err := NewVLLMChain(VLLMContract{BlockTokens: n}); !errors.Is(err, ErrInvalid) {
			t.Errorf("vllm blocks of %d: %v", n, err)
		}
	}
	if _, err := NewVLLMChain(VLLMContract{BlockTokens: 1, Algorithm: 9}); !errors.Is(err, ErrUnsupported) {
		t.Error(err)
	}
	if _, err := NewVLLMChain(VLLMContract{BlockTokens: 1, Seed: "\xff"}); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
	s, _ := NewSGLangChain(1, false)
	if err := s.Reset(make([]byte, 31)); !errors.Is(err, ErrHashLen) {
		t.Error(err)
	}
	v, _ := NewVLLMChain(VLLMContract{BlockTokens: 1})
	for i, r := range []VLLMRequest{
		{Parent: make([]byte, 16), FirstBlock: 1}, {FirstBlock: 1}, {FirstBlock: -1}, {Parent: make([]byte, 32)},
	} {
		if err := v.Reset(r); !errors.Is(err, ErrHashLen) {
			t.Errorf("%d: %v", i, err)
		}
	}
	for i, r := range []VLLMRequest{
		{CacheSalt: "\xff"}, {LoRA: &VLLMLoRA{Name: "\xff"}}, {Images: []VLLMImage{{"a", 4, 2}, {"b", 5, 1}}},
		{Images: []VLLMImage{{"a", -1, 2}}}, {Images: []VLLMImage{{"a", 1, -2}}}, {Images: []VLLMImage{{"\xff", 1, 2}}},
	} {
		if err := v.Reset(r); !errors.Is(err, ErrInvalid) {
			t.Errorf("%d: %v", i, err)
		}
	}
}

// hashers are both chains behind one shape, for the properties that both must have.
func hashers(t testing.TB, pageTokens int, r VLLMRequest) map[string]func(portions ...[]uint32) []byte {
	t.Helper()
	run := map[string]func(portions ...[]uint32) []byte{}
	for _, bigram := range []bool{false, true} {
		name := map[bool]string{false: "sglang", true: "sglang bigram"}[bigram]
		run[name] = func(portions ...[]uint32) (dst []byte) {
			c, err := NewSGLangChain(pageTokens, bigram)
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range portions {
				dst = c.Append(dst, p)
			}
			return dst
		}
	}
	for _, a := range []VLLMAlgorithm{SHA256CBOR, XXHashCBOR} {
		run[a.String()] = func(portions ...[]uint32) (dst []byte) {
			c, err := NewVLLMChain(VLLMContract{Algorithm: a, BlockTokens: pageTokens, Seed: "0"})
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Reset(r); err != nil {
				t.Fatal(err)
			}
			for _, p := range portions {
				dst = c.Append(dst, p)
			}
			return dst
		}
	}
	return run
}

// FuzzChainHash: tokens in any portions give the digests of tokens one at a time; a chain taken up in the middle
// goes on as if it had never stopped.
func FuzzChainHash(f *testing.F) {
	f.Add([]byte("a stream of tokens that spans several pages, cut somewhere"), uint8(3), uint16(17), uint16(5))
	f.Add([]byte{}, uint8(0), uint16(0), uint16(0))
	f.Add(bytes.Repeat([]byte{0xff}, 400), uint8(15), uint16(3), uint16(60))
	f.Fuzz(func(t *testing.T, raw []byte, page uint8, cutA, cutB uint16) {
		tokens := make([]uint32, 0, len(raw)/4)
		for ; len(raw) >= 4; raw = raw[4:] {
			tokens = append(tokens, uint32(raw[0])|uint32(raw[1])<<8|uint32(raw[2])<<16|uint32(raw[3])<<24)
		}
		n := int(page)%16 + 1
		a := int(cutA) % (len(tokens) + 1)
		b := a + int(cutB)%(len(tokens)-a+1)
		req := VLLMRequest{CacheSalt: "s", LoRA: &VLLMLoRA{"n", "p"}, Images: []VLLMImage{{"i", a, b - a}}}
		for name, run := range hashers(t, n, req) {
			single := make([][]uint32, len(tokens))
			for i := range tokens {
				single[i] = tokens[i : i+1]
			}
			want := run(single...)
			if got := run(tokens[:a], tokens[a:b], tokens[b:]); !bytes.Equal(got, want) {
				t.Fatalf("%s: portions give %x, one at a time %x", name, got, want)
			}
			if got := run(tokens); !bytes.Equal(got, want) {
				t.Fatalf("%s: at once gives %x, one at a time %x", name, got, want)
			}
		}
		resume(t, tokens, n, a/n, req)
	})
}

// resume takes both chains up behind block k.
func resume(t *testing.T, tokens []uint32, n, k int, req VLLMRequest) {
	if k == 0 {
		return
	}
	s, _ := NewSGLangChain(n, false)
	want := s.Append(nil, tokens)
	if err := s.Reset(want[32*(k-1) : 32*k]); err != nil {
		t.Fatal(err)
	}
	if got := s.Append(nil, tokens[k*n:]); !bytes.Equal(got, want[32*k:]) {
		t.Fatalf("sglang behind page %d: %x, want %x", k, got, want[32*k:])
	}
	v, _ := NewVLLMChain(VLLMContract{BlockTokens: n})
	if err := v.Reset(req); err != nil {
		t.Fatal(err)
	}
	want = v.Append(nil, tokens)
	req.Parent, req.FirstBlock = want[32*(k-1):32*k], k
	if err := v.Reset(req); err != nil {
		t.Fatal(err)
	}
	if got := v.Append(nil, tokens[k*n:]); !bytes.Equal(got, want[32*k:]) {
		t.Fatalf("vllm behind block %d: %x, want %x", k, got, want[32*k:])
	}
}

func TestChainAllocations(t *testing.T) {
	tokens := make([]uint32, 1024)
	s, _ := NewSGLangChain(16, false)
	v, _ := NewVLLMChain(VLLMContract{BlockTokens: 16})
	dst := make([]byte, 0, 64*32)
	if n := testing.AllocsPerRun(10, func() { dst = s.Append(dst[:0], tokens) }); n != 0 {
		t.Errorf("sglang: %v allocations", n)
	}
	if n := testing.AllocsPerRun(10, func() { dst = v.Append(dst[:0], tokens) }); n != 0 {
		t.Errorf("vllm: %v allocations", n)
	}
}

// BenchmarkChain hashes a million tokens at 16 per page: 62,500 links.
func BenchmarkChain(b *testing.B) {
	tokens := make([]uint32, 1_000_000)
	for i := range tokens {
		tokens[i] = uint32(i*2654435761) % 128_000
	}
	dst := make([]byte, 0, 62_500*32)
	s, _ := NewSGLangChain(16, false)
	v, _ := NewVLLMChain(VLLMContract{BlockTokens: 16})
	x, _ := NewVLLMChain(VLLMContract{BlockTokens: 16, Algorithm: XXHashCBOR})
	for _, c := range []struct {
		name   string
		append func([]byte, []uint32) []byte
	}{{"sglang", s.Append}, {"vllm_sha256_cbor", v.Append}, {"vllm_xxhash_cbor", x.Append}} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				dst = c.append(dst[:0], tokens)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/62_500, "ns/link")
			b.ReportMetric(float64(b.Elapsed().Milliseconds())/float64(b.N), "ms/62500_links")
		})
	}
}
