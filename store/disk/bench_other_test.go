//go:build !linux

package disk

import "testing"

func forgetCached(b *testing.B, _ string) { b.Skip("the page cache cannot be emptied here") }
