//go:build !amd64 || purego

package kernels

import "testing"

// atEveryLevel runs f as there is one way only.
func atEveryLevel(t *testing.T, f func(t *testing.T)) { t.Run("plain", f) }
