// Package checkpoint digests the folder of a model's checkpoint: which weights and which configuration these are, file
// by file, and enough of each tensor that a later start can tell by samples whether the folder is still the same. It
// imports nothing of ours. docs/formats/model-manifest.md mirrors what it writes.
package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// Options of Digest. The zero value digests without a cache.
type Options struct {
	Workers  int                              // files read at once; 0: 4, or fewer processors. More saturate a disk, not speed it up
	CacheDir string                           // where digests of unchanged files are kept; empty: nowhere
	Now      func() time.Time                 // for what is too young to be cached; nil: nothing is stored in the cache
	Model    string                           // the model's name; empty: made of its content
	Progress func(doneBytes, allBytes uint64) // called by the workers as they go, at most one at a time; nil: nobody
}

// Result is a manifest and what it cost.
type Result struct {
	Manifest    *Manifest
	ReadBytes   uint64 // of files that were read
	CachedBytes uint64 // of files that were known
	CacheError  error  // why the cache could not be written; the manifest is whole all the same
}

const maxWorkers = 4

// ErrNoWeights is what a folder without weights answers.
var ErrNoWeights = errors.New("no weights")

// Digest reads a checkpoint folder. Symbolic links to files are followed, as the folders of hub caches need it. A file
// that changes while it is read is an error. Errors name the file.
func Digest(ctx context.Context, dir string, o Options) (*Result, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	l, err := list(dir)
	if err != nil {
		return nil, err
	}
	known := openCache(o.CacheDir, dir, o.Now)
	w := &work{dir: dir, files: l.files, known: known, progress: o.Progress}
	for _, f := range l.files {
		w.allBytes += uint64(f.Size)
	}
	if err := w.run(ctx, o.Workers); err != nil {
		return nil, err
	}
	m, err := l.manifest(dir, o.Model)
	if err != nil {
		return nil, err
	}
	r := &Result{Manifest: m, ReadBytes: w.read.Load(), CachedBytes: w.cached.Load()}
	r.CacheError = known.save()
	return r, nil
}

// work is one Digest's reading: the workers share it, each owns the file it took.
type work struct {
	dir      string
	files    []*File
	known    *cache
	allBytes uint64
	next     atomic.Int64
	read     atomic.Uint64
	cached   atomic.Uint64

	mu       sync.Mutex // guards progress calls and err
	progress func(done, all uint64)
	err      error
}

func (w *work) run(ctx context.Context, workers int) error {
	if workers <= 0 {
		workers = min(maxWorkers, runtime.GOMAXPROCS(0))
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var all sync.WaitGroup
	for range min(workers, len(w.files)) {
		all.Go(func() {
			for {
				i := int(w.next.Add(1)) - 1
				if i >= len(w.files) {
					return
				}
				if err := w.one(ctx, w.files[i]); err != nil {
					w.fail(err)
					cancel()
					return
				}
			}
		})
	}
	all.Wait()
	return w.err
}

// fail keeps the first error: the others are of the cancelled context.
func (w *work) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.err = err
	}
}

func (w *work) advance(bytes int) {
	w.read.Add(uint64(bytes))
	w.tell()
}

func (w *work) tell() {
	if w.progress == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.progress(w.read.Load()+w.cached.Load(), w.allBytes)
}

// one digests a file, or takes it from the cache.
func (w *work) one(ctx context.Context, f *File) error {
	path := filepath.Join(w.dir, f.Name)
	info, err := os.Stat(path)
	if err != nil {
		return fileError(path, err)
	}
	if w.known.find(f, info) {
		w.cached.Add(uint64(f.Size))
		w.tell()
		return nil
	}
	began := w.known.begin()
	before, err := f.digest(ctx, path, w.advance)
	if err != nil {
		return err
	}
	w.known.put(f, before, began)
	return nil
}

// fileError says what is wrong with a file that cannot be had.
func fileError(path string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		if target, linkErr := os.Readlink(path); linkErr == nil {
			return fmt.Errorf("%s points to %s, which is not there: download the model again", path, target)
		}
	}
	return err
}
