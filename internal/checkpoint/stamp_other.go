//go:build !linux

package checkpoint

import "io/fs"

// stampOf knows size and time of change alone here: without an inode nothing is cached.
func stampOf(info fs.FileInfo) stamp {
	return stamp{Size: info.Size(), MTime: info.ModTime().UnixNano()}
}
