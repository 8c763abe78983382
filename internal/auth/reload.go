package auth

import (
	"crypto/tls"
	"fmt"
	"os"
	"sync"
	"time"
)

// reloading is a certificate that follows its files. Reading happens outside the lock; when a new pair cannot be
// read (half-written, say) the last good one stays in use.
type reloading struct {
	cert, key string

	mu     sync.Mutex // guards all below
	loaded *tls.Certificate
	stamp  [2]time.Time
}

func (r *reloading) get() (*tls.Certificate, error) {
	stamp, err := r.stat()
	r.mu.Lock()
	last, same := r.loaded, r.stamp == stamp
	r.mu.Unlock()
	if last != nil && (err != nil || same) {
		return last, nil
	}
	if err != nil {
		return nil, err
	}
	pair, err := tls.LoadX509KeyPair(r.cert, r.key)
	if err != nil {
		if last != nil {
			return last, nil
		}
		return nil, fmt.Errorf("load certificate: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.loaded, r.stamp = &pair, stamp
	return r.loaded, nil
}

func (r *reloading) stat() (stamp [2]time.Time, err error) {
	for i, file := range [2]string{r.cert, r.key} {
		info, err := os.Stat(file)
		if err != nil {
			return stamp, fmt.Errorf("load certificate: %w", err)
		}
		stamp[i] = info.ModTime()
	}
	return stamp, nil
}
