package server

import (
	"math"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/core"
	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/rpc"
)

func badField(path, format string, a ...any) *rpc.Error {
	e := rpc.Errorf(reason.InvalidSpec, format, a...)
	e.Path = path
	return e
}

// countKeys is the number of keys of runs, within the bound.
func (l *Limits) countKeys(runs []*quirev1.KeyRun, hashBytes int) (int, error) {
	if len(runs) > l.MaxKeys {
		return 0, l.tooManyKeys()
	}
	total := 0
	for _, r := range runs {
		n, err := l.keysOf(r, hashBytes)
		if err != nil {
			return 0, err
		}
		if total += n; total > l.MaxKeys {
			return 0, l.tooManyKeys()
		}
	}
	return total, nil
}

func (l *Limits) keysOf(r *quirev1.KeyRun, hashBytes int) (int, error) {
	n := len(r.GetHashes())
	if n%hashBytes != 0 {
		return 0, badField("run.hashes", "%d bytes are no whole number of %d-byte hashes", n, hashBytes)
	}
	if n /= hashBytes; n > l.MaxKeys {
		return 0, l.tooManyKeys()
	}
	return n, nil
}

// strangerKeys is the number of keys of runs in a namespace that the caller cannot see: by what was sent alone, since
// the true hash length would tell that the namespace exists. 32 bytes is every engine's default.
func (l *Limits) strangerKeys(runs []*quirev1.KeyRun) (int, error) {
	hashBytes := 32
	for _, r := range runs {
		if len(r.GetHashes())%hashBytes != 0 {
			hashBytes = page.MinHashBytes
		}
	}
	total := 0
	for _, r := range runs {
		total += (len(r.GetHashes()) + hashBytes - 1) / hashBytes
	}
	if len(runs) > l.MaxKeys || total > l.MaxKeys {
		return 0, l.tooManyKeys()
	}
	return total, nil
}

func (l *Limits) tooManyKeys() error {
	return rpc.Errorf(reason.LimitExceeded, "more than %d keys in one call", l.MaxKeys)
}

// batchBytes checks the payload of n pages of one view.
func (l *Limits) batchBytes(n int, g *core.Geometry, v page.View) (int64, error) {
	if v == (page.View{}) {
		v = g.Full()
	}
	each := uint64(v.Cells()) * uint64(g.CellBytes) // < 2^32 cells of < 2^32 bytes
	if each != 0 && uint64(n) > uint64(l.MaxBatchBytes)/each {
		return 0, l.tooManyBytes()
	}
	return int64(each) * int64(n), nil
}

func (l *Limits) tooManyBytes() error {
	return rpc.Errorf(reason.LimitExceeded, "more than %d payload bytes in one call", l.MaxBatchBytes)
}

// lease is the duration to ask the store for: the caller's within the bound, or the default.
func (l *Limits) lease(d *durationpb.Duration) (time.Duration, error) {
	if d == nil {
		return l.DefaultLease, nil
	}
	ttl := d.AsDuration()
	switch {
	case d.CheckValid() != nil || ttl < 0:
		return 0, badField("lease", "a lease lasts some time")
	case ttl == 0:
		return l.DefaultLease, nil
	}
	return min(ttl, l.MaxLease), nil
}

// viewOf reads a view; nil is the zero View: the whole page.
func viewOf(v *quirev1.View) (page.View, error) {
	if v == nil {
		return page.View{}, nil
	}
	if v.TokenStart != 0 || v.TokenStride != 0 || v.TokenRun != 0 || v.Shard != 0 || v.Shards != 0 {
		return page.View{}, rpc.Errorf(reason.Unsupported, "token sets and shards of a page are not built")
	}
	if v.H0 > math.MaxUint16 || v.H1 > math.MaxUint16 || v.L0 > math.MaxUint16 || v.L1 > math.MaxUint16 {
		return page.View{}, rpc.Errorf(reason.InvalidView, "heads and layers are below %d", math.MaxUint16+1)
	}
	out := page.View{H0: uint16(v.H0), H1: uint16(v.H1), L0: uint16(v.L0), L1: uint16(v.L1)}
	if out.Empty() {
		return page.View{}, rpc.Errorf(reason.InvalidView, "the view has no cell")
	}
	return out, nil
}

func viewToProto(v page.View) *quirev1.View {
	return &quirev1.View{H0: uint32(v.H0), H1: uint32(v.H1), L0: uint32(v.L0), L1: uint32(v.L1)}
}

// digest32 reads a 32-byte field; empty is zero where that is allowed.
func digest32[T ~[32]byte](path string, b []byte, emptyOK bool) (T, error) {
	if len(b) == 32 {
		return T(b), nil
	}
	if len(b) == 0 && emptyOK {
		return T{}, nil
	}
	return T{}, badField(path, "%d bytes, want 32", len(b))
}

func bytes16(path string, b []byte, emptyOK bool) (out [16]byte, err error) {
	if len(b) == 16 {
		return [16]byte(b), nil
	}
	if len(b) == 0 && emptyOK {
		return out, nil
	}
	return out, badField(path, "%d bytes, want 16", len(b))
}
