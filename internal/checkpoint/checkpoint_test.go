package checkpoint

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// madeFile is one file of testdata/checkpoint.json.
type madeFile struct {
	Name    string
	Text    string
	Tensors [][2]json.RawMessage
}

// checkpointFiles is the checkpoint that the Python tests make too.
func checkpointFiles(t testing.TB) map[string][]byte {
	t.Helper()
	data, err := os.ReadFile("testdata/checkpoint.json")
	if err != nil {
		t.Fatal(err)
	}
	var doc struct{ Files []madeFile }
	if err := json.Unmarshal(data, &doc); err != nil {
		t.Fatal(err)
	}
	out := map[string][]byte{}
	for _, f := range doc.Files {
		out[f.Name] = []byte(f.Text)
		if f.Tensors != nil {
			out[f.Name] = safetensors(t, f.Tensors)
		}
	}
	return out
}

// safetensors is a file as testdata/README.md says.
func safetensors(t testing.TB, tensors [][2]json.RawMessage) []byte {
	t.Helper()
	header, data := `{"__metadata__":{"format":"pt"}`, []byte(nil)
	for _, raw := range tensors {
		var name string
		var shape []int
		if err := errors.Join(json.Unmarshal(raw[0], &name), json.Unmarshal(raw[1], &shape)); err != nil {
			t.Fatal(err)
		}
		size := 2
		for _, d := range shape {
			size *= d
		}
		var dims bytes.Buffer
		if err := json.Compact(&dims, raw[1]); err != nil {
			t.Fatal(err)
		}
		header += fmt.Sprintf(`,%q:{"dtype":"BF16","shape":%s,"data_offsets":[%d,%d]}`, name, dims.String(), len(data), len(data)+size)
		var own []byte
		for i := 0; len(own) < size; i++ {
			sum := sha256.Sum256(fmt.Appendf(nil, "%s %d", name, i))
			own = append(own, sum[:]...)
		}
		data = append(data, own[:size]...)
	}
	return withHeader(header+"}", data)
}

func withHeader(header string, data []byte) []byte {
	out := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(out, header...), data...)
}

func writeFiles(t testing.TB, dir string, files map[string][]byte) string {
	t.Helper()
	for name, data := range files {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, data, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// later is so long after any file of a test was written that its stamp is settled.
func later() time.Time { return time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC) }

func digest(t testing.TB, dir string, o Options) *Result {
	t.Helper()
	r, err := Digest(context.Background(), dir, o)
	if err != nil {
		t.Fatal(err)
	}
	if r.CacheError != nil {
		t.Fatal(r.CacheError)
	}
	return r
}

func refused(t *testing.T, dir, want string) {
	t.Helper()
	_, err := Digest(context.Background(), dir, Options{})
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want one that says %q", err, want)
	}
}

func TestManifestIsTheGoldenOne(t *testing.T) {
	r := digest(t, writeFiles(t, t.TempDir(), checkpointFiles(t)), Options{})
	got := r.Manifest.JSON()
	want, err := os.ReadFile("testdata/manifest.json")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("the manifest is\n%s\nwant\n%s", got, want)
	}
	var back Manifest
	if err := json.Unmarshal(got, &back); err != nil || !bytes.Equal(back.JSON(), got) {
		t.Errorf("read back and written again it is another: %v", err)
	}
}

func TestManifestDoesNotDependOnPlaceWorkersOrCache(t *testing.T) {
	files, cacheDir := checkpointFiles(t), t.TempDir()
	want := digest(t, writeFiles(t, t.TempDir(), files), Options{Workers: 1}).Manifest.JSON()
	dir := writeFiles(t, t.TempDir(), files)
	for range 2 {
		got := digest(t, dir, Options{Workers: 7, CacheDir: cacheDir, Now: later}).Manifest.JSON()
		if !bytes.Equal(got, want) {
			t.Errorf("%s\nwant\n%s", got, want)
		}
	}
}

// TestCase_C2_OtherContentIsOtherDigest: whatever changes what a model computes changes the digest, though names and
// sizes stay.
func TestCase_C2_OtherContentIsOtherDigest(t *testing.T) {
	base := checkpointFiles(t)
	before := digest(t, writeFiles(t, t.TempDir(), base), Options{}).Manifest
	flip := func(name string, at int) func(map[string][]byte) {
		return func(f map[string][]byte) {
			f[name] = slices.Clone(f[name])
			f[name][(at+len(f[name]))%len(f[name])] ^= 1
		}
	}
	shard := "model-00001-of-00002.safetensors"
	for name, c := range map[string]struct {
		change  func(map[string][]byte)
		weights bool // whether the weights' digest changes too
	}{
		"last bit of a tensor": {flip(shard, -1), true},
		"a bit in the middle":  {flip(shard, 40000), true},
		"other format":         {flip("extra.bin", 0), true},
		"program":              {flip("modeling_custom.py", 4), true},
		"renamed tensor": {func(f map[string][]byte) {
			f[shard] = bytes.Replace(f[shard], []byte("norm.weight"), []byte("norm.wEight"), 1)
		}, true},
		"two shards exchange names": {func(f map[string][]byte) { s := "model-00002-of-00002.safetensors"; f[shard], f[s] = f[s], f[shard] }, true},
		"one file more":             {func(f map[string][]byte) { f["more.gguf"] = []byte("x") }, true},
		"one file less":             {func(f map[string][]byte) { delete(f, "extra.bin") }, true},
		"configuration": {func(f map[string][]byte) {
			f["config.json"] = bytes.Replace(f["config.json"], []byte("1e-05"), []byte("1e-06"), 1)
		}, false},
	} {
		files := map[string][]byte{}
		for k, v := range base {
			files[k] = v
		}
		c.change(files)
		after := digest(t, writeFiles(t, t.TempDir(), files), Options{}).Manifest
		if after.Digest == before.Digest {
			t.Errorf("%s: the digest stays", name)
		}
		if (after.Weights != before.Weights) != c.weights {
			t.Errorf("%s: weights %s, before %s", name, after.Weights, before.Weights)
		}
	}
	for _, name := range []string{"tokenizer.json", "generation_config.json", "README.md", "training_args.bin"} {
		files := checkpointFiles(t)
		files[name] = append(files[name], '\n')
		if after := digest(t, writeFiles(t, t.TempDir(), files), Options{}).Manifest; after.Digest != before.Digest {
			t.Errorf("%s changes the digest", name)
		}
	}
}

func TestCacheIsUsedWithoutReading(t *testing.T) {
	dir, cacheDir := writeFiles(t, t.TempDir(), checkpointFiles(t)), t.TempDir()
	o := Options{CacheDir: cacheDir, Now: later}
	first := digest(t, dir, o)
	if first.ReadBytes == 0 || first.CachedBytes != 0 {
		t.Fatalf("first: %d read, %d cached", first.ReadBytes, first.CachedBytes)
	}
	second := digest(t, dir, o)
	if second.ReadBytes != 0 || second.CachedBytes != first.ReadBytes {
		t.Errorf("second: %d read, %d cached, want 0 and %d", second.ReadBytes, second.CachedBytes, first.ReadBytes)
	}
	if !bytes.Equal(first.Manifest.JSON(), second.Manifest.JSON()) {
		t.Error("the manifest of the cache is another")
	}
}

// TestCacheIsNotFooledByTimesSetBack writes other content of the same size into the same file and sets mtime back.
func TestCacheIsNotFooledByTimesSetBack(t *testing.T) {
	dir, o := writeFiles(t, t.TempDir(), checkpointFiles(t)), Options{CacheDir: t.TempDir(), Now: later}
	first := digest(t, dir, o)
	path := filepath.Join(dir, "extra.bin")
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteAt([]byte("W"), 0)
	for err == nil && stampMoved(t, path, info) == false { // ticks of the file system's clock are milliseconds
		_, err = f.WriteAt([]byte("W"), 0)
	}
	if err := errors.Join(err, f.Close(), os.Chtimes(path, info.ModTime(), info.ModTime())); err != nil {
		t.Fatal(err)
	}
	second := digest(t, dir, o)
	if second.Manifest.Digest == first.Manifest.Digest || second.ReadBytes != uint64(info.Size()) {
		t.Errorf("%d bytes read, want %d; digest %s", second.ReadBytes, info.Size(), second.Manifest.Digest)
	}
	third := digest(t, dir, o)
	if third.ReadBytes != 0 || third.Manifest.Digest != second.Manifest.Digest {
		t.Errorf("third: %d bytes read", third.ReadBytes)
	}
}

func stampMoved(t *testing.T, path string, before os.FileInfo) bool {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return stampOf(info).CTime != stampOf(before).CTime
}

func TestFilesThatWereJustWrittenAreNotCached(t *testing.T) {
	dir, cacheDir := writeFiles(t, t.TempDir(), checkpointFiles(t)), t.TempDir()
	info, err := os.Stat(filepath.Join(dir, "extra.bin"))
	if err != nil {
		t.Fatal(err)
	}
	just := func() time.Time { return info.ModTime().Add(settled / 2) }
	digest(t, dir, Options{CacheDir: cacheDir, Now: just})
	if again := digest(t, dir, Options{CacheDir: cacheDir, Now: later}); again.CachedBytes != 0 {
		t.Errorf("%d bytes came from a cache of files that were just written", again.CachedBytes)
	}
}

func TestCacheDamageCostsReadingAlone(t *testing.T) {
	dir, o := writeFiles(t, t.TempDir(), checkpointFiles(t)), Options{CacheDir: t.TempDir(), Now: later}
	first := digest(t, dir, o)
	names, err := filepath.Glob(filepath.Join(o.CacheDir, "quire", "digests", "*.json"))
	if err != nil || len(names) != 1 {
		t.Fatalf("%v, %v", names, err)
	}
	if err := os.WriteFile(names[0], []byte(`{"format":"quire digest cache 1","files":{"extra.bin":{`), 0o600); err != nil {
		t.Fatal(err)
	}
	second := digest(t, dir, o)
	if second.ReadBytes != first.ReadBytes || second.Manifest.Digest != first.Manifest.Digest {
		t.Errorf("%d bytes read, want %d", second.ReadBytes, first.ReadBytes)
	}
}

func TestCachesAreBounded(t *testing.T) {
	dir := t.TempDir()
	for i := range maxFolders + 5 {
		name := filepath.Join(dir, fmt.Sprintf("%03d.json", i))
		at := later().Add(time.Duration(i) * time.Second)
		if err := errors.Join(os.WriteFile(name, nil, 0o600), os.Chtimes(name, at, at)); err != nil {
			t.Fatal(err)
		}
	}
	if err := prune(dir); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != maxFolders || left[0].Name() != "005.json" {
		t.Errorf("%d files from %v on, want the newest %d", len(left), left[0], maxFolders)
	}
}

func TestSymbolicLinksOfHubCaches(t *testing.T) {
	root := t.TempDir()
	want := digest(t, writeFiles(t, t.TempDir(), checkpointFiles(t)), Options{}).Manifest.JSON()
	snapshot := filepath.Join(root, "models--org--name", "snapshots", "abc")
	if err := os.MkdirAll(snapshot, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, data := range checkpointFiles(t) {
		writeFiles(t, root, map[string][]byte{filepath.Join("models--org--name", "blobs", name+"-blob"): data})
		if err := os.Symlink(filepath.Join("..", "..", "blobs", name+"-blob"), filepath.Join(snapshot, name)); err != nil {
			t.Fatal(err)
		}
	}
	if got := digest(t, snapshot, Options{}).Manifest.JSON(); !bytes.Equal(got, want) {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	if err := os.Remove(filepath.Join(root, "models--org--name", "blobs", "extra.bin-blob")); err != nil {
		t.Fatal(err)
	}
	refused(t, snapshot, "download the model again")
}

func TestIndexesReachBelowTheFolderAndNoFurther(t *testing.T) {
	files := checkpointFiles(t)
	files["sub/extra.safetensors"] = safetensors(t, nil)
	files["sub/other.safetensors"] = safetensors(t, nil)
	files["more.index.json"] = []byte(`{"weight_map":{"a":"sub/extra.safetensors"}}`)
	m := digest(t, writeFiles(t, t.TempDir(), files), Options{}).Manifest
	var names []string
	for _, f := range m.Files {
		names = append(names, f.Name)
	}
	if !slices.Contains(names, "sub/extra.safetensors") || slices.Contains(names, "sub/other.safetensors") {
		t.Errorf("files %v", names)
	}
	if !slices.Contains(m.LeftOut, LeftOut{"sub", "a folder; engines read the files beside it"}) {
		t.Errorf("left out: %v", m.LeftOut)
	}
	for index, want := range map[string]string{
		`{"weight_map":{"a":"../x.safetensors"}}`:    "no file below the folder",
		`{"weight_map":{"a":"/etc/passwd"}}`:         "no file below the folder",
		`{"weight_map":{"a":"gone.safetensors"}}`:    "is not there",
		`{"weight_map":["a"]}`:                       "no index of shards",
		`{"weight_map":{"a":"./extra.safetensors"}}`: "no file below the folder",
	} {
		files["more.index.json"] = []byte(index)
		refused(t, writeFiles(t, t.TempDir(), files), want)
	}
}

func TestBrokenCheckpointsAreRefusedWithWhatToDo(t *testing.T) {
	refused(t, filepath.Join(t.TempDir(), "gone"), "no such file")
	refused(t, t.TempDir(), "no weights")
	refused(t, writeFiles(t, t.TempDir(), map[string][]byte{"config.json": []byte("{}"), "sub/model.safetensors": nil}), "no weights")
	good := safetensors(t, [][2]json.RawMessage{{[]byte(`"a"`), []byte(`[4]`)}, {[]byte(`"b"`), []byte(`[4]`)}})
	for name, c := range map[string]struct {
		data []byte
		want string
	}{
		"empty":                  {nil, "less than the length of a header"},
		"length alone":           {good[:8], "is cut short after 0"},
		"half a header":          {good[:40], "download it again"},
		"without the last byte":  {good[:len(good)-1], "download it again"},
		"one byte more":          {append(slices.Clone(good), 0), "no whole safetensors file"},
		"absurd length":          {binary.LittleEndian.AppendUint64(nil, 1<<62), "at most"},
		"a page of a web server": {[]byte("<html><head></head><body>not found"), "at most"},
		"no JSON":                {withHeader("{not", nil), "not JSON"},
		"no offsets":             {withHeader(`{"a":{"dtype":"F32","shape":[1]}}`, nil), "no place for tensor"},
		"offsets backwards":      {withHeader(`{"a":{"shape":[1],"data_offsets":[4,0]}}`, []byte("1234")), "no place for tensor"},
		"negative":               {withHeader(`{"a":{"shape":[1],"data_offsets":[-4,0]}}`, nil), "no place for tensor"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := writeFiles(t, t.TempDir(), map[string][]byte{"config.json": []byte("{}"), "model.safetensors": c.data})
			refused(t, dir, c.want)
			refused(t, dir, "model.safetensors")
		})
	}
}

func TestDigestEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	dir := writeFiles(t, t.TempDir(), checkpointFiles(t))
	_, err := Digest(ctx, dir, Options{Workers: 1, Progress: func(done, all uint64) {
		if done == 0 || done > all {
			t.Errorf("%d of %d bytes done", done, all)
		}
		cancel()
	}})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want canceled", err)
	}
}

func TestProgressReachesTheEnd(t *testing.T) {
	dir := writeFiles(t, t.TempDir(), checkpointFiles(t))
	for range 2 { // read, then cached
		var last, size uint64
		digest(t, dir, Options{CacheDir: t.TempDir(), Now: later, Progress: func(done, all uint64) { last, size = max(last, done), all }})
		if last != size || size == 0 {
			t.Errorf("%d of %d bytes", last, size)
		}
	}
}

// TestSamplesAreOfTheTensorsOwnBytes: each block lies in its tensor, blocks of one tensor do not overlap, their digest
// is that of the file, and there are as many as the bound allows.
func TestSamplesAreOfTheTensorsOwnBytes(t *testing.T) {
	for size := int64(0); size < 12*BlockBytes; size += 1111 {
		s := span{"t", 13, 13 + size}
		got := places(s)
		if want := min((size+BlockBytes-1)/BlockBytes, maxTensorBlocks); int64(len(got)) != want {
			t.Errorf("%d bytes: %d blocks, want %d", size, len(got), want)
		}
		for i, at := range got {
			if at < s.begin || at >= s.end || i > 0 && at < got[i-1]+BlockBytes {
				t.Errorf("%d bytes: blocks at %v", size, got)
			}
		}
	}
	files := checkpointFiles(t)
	m := digest(t, writeFiles(t, t.TempDir(), files), Options{}).Manifest
	n := 0
	for _, f := range m.Files {
		if f.Kind == KindWeights && f.HeaderSHA256 != sha256Hex(files[f.Name][:f.HeaderBytes]) {
			t.Errorf("%s: another header", f.Name)
		}
		for _, tensor := range f.Tensors {
			for _, b := range tensor.Blocks {
				n++
				if sum := sha256.Sum256(files[f.Name][b.Offset : b.Offset+b.Length]); !bytes.Equal(sum[:16], b.Digest[:]) {
					t.Errorf("%s: the block at %d has another digest", f.Name, b.Offset)
				}
			}
		}
	}
	if n == 0 {
		t.Error("no block")
	}
}

func TestWriteReplacesWholeFiles(t *testing.T) {
	m := digest(t, writeFiles(t, t.TempDir(), checkpointFiles(t)), Options{Model: "org/name"}).Manifest
	path := DefaultPath(filepath.Join(t.TempDir(), "cache"), m.Digest)
	for range 2 {
		if err := m.Write(path); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(data, m.JSON()) || m.Model != "org/name" {
		t.Errorf("%v: %s", err, data)
	}
	left, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(left) != 1 {
		t.Errorf("%v are left, %v", left, err)
	}
}

// FuzzHeader: whatever a file says, its layout lies within it, and the samples are within the layout.
func FuzzHeader(f *testing.F) {
	f.Add([]byte{})
	f.Add(withHeader(`{"a":{"shape":[4],"data_offsets":[0,8]}}`, make([]byte, 8)))
	f.Add(withHeader(`{"a":{"shape":[18446744073709551615,9],"data_offsets":[9223372036854775807,-1]}}`, nil))
	f.Fuzz(func(t *testing.T, data []byte) {
		size := int64(len(data))
		l, err := layoutOf(bytes.NewReader(data), "m.safetensors", size)
		if err != nil {
			return
		}
		for _, s := range l.spans {
			for _, at := range places(s) {
				if at < l.headerBytes || at >= s.end || s.end > size {
					t.Fatalf("a block at %d of %+v in %d bytes", at, s, size)
				}
			}
		}
	})
}
