package checkpoint

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

const (
	// BlockBytes is the size of a sample.
	BlockBytes = 4096
	// maxTensorBlocks and maxFileBlocks bound the manifest: about 60 bytes a sample.
	maxTensorBlocks = 4
	maxFileBlocks   = 64 // of files that are not looked into
	chunkBytes      = 1 << 20
)

// errChanged is what a file answers that is not the same before and after it was read.
var errChanged = errors.New("changed while it was read: wait until the download is done")

// digest reads the file and fills in all but its name and kind. It answers what the file was before the first byte.
func (f *File) digest(ctx context.Context, path string, advance func(bytes int)) (fs.FileInfo, error) {
	r, err := os.Open(path)
	if err != nil {
		return nil, fileError(path, err)
	}
	defer r.Close()
	before, err := r.Stat()
	if err != nil {
		return nil, err
	}
	if !before.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file", path)
	}
	f.Size = before.Size()
	if f.Kind == KindWeights {
		if err := f.sample(r); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	h := sha256.New()
	n, err := io.CopyBuffer(h, &counted{ctx, r, advance}, make([]byte, chunkBytes))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	f.SHA256 = hex.EncodeToString(h.Sum(nil))
	after, err := r.Stat()
	if err != nil {
		return nil, err
	}
	if n != f.Size || stampOf(before) != stampOf(after) {
		return nil, fmt.Errorf("%s %w", path, errChanged)
	}
	return before, nil
}

// counted is a reader that ends with its context and says how far it is. It hides the file's other methods, so that
// CopyBuffer reads through it.
type counted struct {
	ctx     context.Context
	r       io.Reader
	advance func(bytes int)
}

func (c *counted) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := c.r.Read(p)
	c.advance(n)
	return n, err
}

// sample fills in header and tensors.
func (f *File) sample(r io.ReaderAt) error {
	l, err := layoutOf(r, f.Name, f.Size)
	if err != nil {
		return err
	}
	header := make([]byte, l.headerBytes)
	if _, err := r.ReadAt(header, 0); err != nil && err != io.EOF {
		return err
	}
	f.HeaderBytes, f.HeaderSHA256, f.Params = l.headerBytes, sha256Hex(header), l.params
	f.Tensors = make([]Tensor, len(l.spans))
	for i, s := range l.spans {
		f.Tensors[i] = Tensor{Name: s.name, Blocks: []Block{}}
		for _, at := range places(s) {
			b := Block{Offset: at, Length: min(BlockBytes, s.end-at)}
			buf := make([]byte, b.Length)
			if _, err := r.ReadAt(buf, at); err != nil {
				return err
			}
			sum := sha256.Sum256(buf)
			copy(b.Digest[:], sum[:])
			f.Tensors[i].Blocks = append(f.Tensors[i].Blocks, b)
		}
	}
	return nil
}

// places are where a tensor is sampled: one block out of each of up to maxTensorBlocks equal parts, chosen by the
// tensor's name, so that one file always has one manifest and its samples are not all at round offsets.
func places(s span) []int64 {
	blocks := (s.end - s.begin + BlockBytes - 1) / BlockBytes
	parts := min(blocks, int64(maxTensorBlocks))
	if s.name == "" {
		parts = min(blocks, int64(maxFileBlocks))
	}
	seed := sha256.Sum256([]byte(s.name))
	var out []int64
	for i := range parts {
		from, to := blocks*i/parts, blocks*(i+1)/parts
		out = append(out, s.begin+(from+int64(seed[i%int64(len(seed))])*(to-from)/256)*BlockBytes)
	}
	return out
}
