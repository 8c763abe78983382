//go:build !linux

package disk

import "errors"

func setDirect(uintptr) error { return errors.ErrUnsupported }

func writeVector(uintptr, [][]byte, int64) error { return errors.ErrUnsupported }
