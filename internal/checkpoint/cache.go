package checkpoint

import (
	"cmp"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// stamp is a file's identity and state in its file system.
type stamp struct {
	Device uint64 `json:"device"`
	Inode  uint64 `json:"inode"`
	Size   int64  `json:"size"`
	MTime  int64  `json:"mtime_ns"`
	CTime  int64  `json:"ctime_ns"`
}

const (
	cacheFormat  = "quire digest cache 1"
	maxCacheFile = 256 << 20
	maxFolders   = 64 // cache files kept; the least recently written go

	// settled is how long a file has to be left alone before its stamp says that it did not change: file systems count
	// time in ticks, and a write in the tick of our reading would leave no trace.
	settled = 2 * time.Second
)

// cached is one file as it was digested.
type cached struct {
	Stamp stamp `json:"stamp"`
	File  File  `json:"file"`
}

// cache holds the digests of one folder's files. One without a path knows nothing and keeps nothing.
type cache struct {
	path   string // of the cache file; empty: none
	folder string
	now    func() time.Time

	mu      sync.Mutex // guards what is below
	entries map[string]cached
	next    map[string]cached // of the files of this run alone, so that a cache does not outgrow its folder
	changed bool
}

// openCache reads what is known of a folder. Damage is no error: the files are read.
func openCache(dir, folder string, now func() time.Time) *cache {
	c := &cache{folder: folder, now: now, next: map[string]cached{}}
	if dir == "" {
		return c
	}
	c.path = filepath.Join(dir, "quire", "digests", sha256Hex([]byte(folder))+".json")
	data, err := readBounded(c.path, maxCacheFile)
	if err != nil {
		return c
	}
	var doc cacheFile
	if json.Unmarshal(data, &doc) == nil && doc.Format == cacheFormat && doc.Folder == folder {
		c.entries = doc.Files
	}
	return c
}

// cacheFile is what is kept of a folder.
type cacheFile struct {
	Format string            `json:"format"`
	Folder string            `json:"folder"`
	Files  map[string]cached `json:"files"`
}

// find fills f in from the cache if the file is the one that was digested.
func (c *cache) find(f *File, info fs.FileInfo) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.entries[f.Name]
	s := stampOf(info)
	if !ok || s.Inode == 0 || e.Stamp != s || e.File.Kind != f.Kind || e.File.Name != f.Name || e.File.Size != s.Size || len(e.File.SHA256) != 64 {
		return false
	}
	*f = e.File
	c.next[f.Name] = e
	return true
}

// begin is the instant before a file is read, for put.
func (c *cache) begin() time.Time {
	if c.now == nil {
		return time.Time{}
	}
	return c.now()
}

// put keeps a digested file, if its stamp will tell of the next change: it was left alone for a while when its reading
// began.
func (c *cache) put(f *File, before fs.FileInfo, began time.Time) {
	s := stampOf(before)
	if c.path == "" || s.Inode == 0 || began.IsZero() || began.UnixNano()-max(s.MTime, s.CTime) < int64(settled) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.next[f.Name] = cached{s, *f}
	c.changed = true
}

// save writes what is known now. It waits for no worker: they have ended.
func (c *cache) save() error {
	if !c.changed {
		return nil
	}
	data, err := json.Marshal(cacheFile{cacheFormat, c.folder, c.next})
	if err != nil {
		return err
	}
	if err := replaceFile(c.path, data, 0o600); err != nil {
		return err
	}
	return prune(filepath.Dir(c.path))
}

// prune keeps the newest cache files.
func prune(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	type aged struct {
		name string
		at   int64
	}
	var files []aged
	for _, e := range entries {
		if info, err := e.Info(); err == nil && strings.HasSuffix(e.Name(), ".json") {
			files = append(files, aged{e.Name(), info.ModTime().UnixNano()})
		}
	}
	slices.SortFunc(files, func(a, b aged) int { return cmp.Or(cmp.Compare(b.at, a.at), strings.Compare(a.name, b.name)) })
	for _, f := range files[min(len(files), maxFolders):] {
		if err := os.Remove(filepath.Join(dir, f.name)); err != nil && !os.IsNotExist(err) {
			return err
		}
	}
	return nil
}
