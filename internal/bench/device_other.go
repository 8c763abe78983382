//go:build !linux

package bench

import (
	"context"
	"errors"
	"time"
)

func deviceBytes() uint64 { return 0 }

func freeBytes(string) int64 { return -1 }

type directFile struct{}

func newDirectFile(string, int64, int) (*directFile, error) {
	return nil, errors.New("direct writes: Linux only")
}

func (*directFile) rate(context.Context, time.Duration) (float64, error) { return 0, nil }

func (*directFile) close() error { return nil }
