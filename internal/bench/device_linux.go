package bench

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quire-kv/quire/internal/offheap"
)

// deviceBytes is what this process has caused to be written to block devices: direct writes when they are made, others
// when they dirty a page of the cache.
func deviceBytes() uint64 {
	b, err := os.ReadFile("/proc/self/io")
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(b) {
		if v, ok := bytes.CutPrefix(line, []byte("write_bytes: ")); ok {
			n, _ := strconv.ParseUint(string(bytes.TrimSpace(v)), 10, 64)
			return n
		}
	}
	return 0
}

// freeBytes of the file system of a directory; -1: not known.
func freeBytes(dir string) int64 {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil {
		return -1
	}
	return int64(st.Bavail) * st.Bsize
}

// directFile is the reference of the disk: blocks written one after the other past the page cache into a preallocated
// file, round and round, and one fdatasync at the end.
type directFile struct {
	f     *os.File
	arena *offheap.Array[byte] // keeps blocks
	block [][]byte
	bytes int64
	at    int64
}

const directBlocks = 16 // different ones

func newDirectFile(dir string, bytes int64, block int) (*directFile, error) {
	bytes -= bytes % int64(block)
	f, err := os.OpenFile(filepath.Join(dir, "direct"), os.O_CREATE|os.O_RDWR|unix.O_DIRECT, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Fallocate(int(f.Fd()), 0, 0, bytes); err != nil {
		f.Close()
		return nil, err
	}
	d := &directFile{f: f, arena: newArena(directBlocks * block), bytes: bytes}
	d.block = cut(d.arena.Slice(), block)
	return d, nil
}

// rate writes for about d and answers bytes per second.
func (d *directFile) rate(ctx context.Context, limit time.Duration) (float64, error) {
	begun, written := time.Now(), 0
	for n := 0; time.Since(begun) < limit && ctx.Err() == nil; n++ {
		b := d.block[n%len(d.block)]
		if _, err := d.f.WriteAt(b, d.at); err != nil {
			return 0, err
		}
		written += len(b)
		if d.at += int64(len(b)); d.at >= d.bytes {
			d.at = 0
		}
	}
	if err := unix.Fdatasync(int(d.f.Fd())); err != nil {
		return 0, err
	}
	return float64(written) / time.Since(begun).Seconds(), nil
}

func (d *directFile) close() error { return d.f.Close() }
