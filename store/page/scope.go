package page

import (
	"crypto/sha256"
	"encoding/binary"
)

// scopeDomain keeps scopes apart from every other digest.
const scopeDomain = "quire-scope-v1"

// AdapterDigest is SHA-256 of an adapter's content, never of its name.
type AdapterDigest [32]byte

// MakeScope is the scope of a request: its adapters in the order in which they apply, and its cache salt, "" for
// none. Plain requests have the zero Scope. Each part says what it is and how long, so that no adapter can be read
// as a salt:
//
//	SHA-256( "quire-scope-v1" | u32 adapters | 32 bytes each | u64 salt bytes | salt )    little-endian
func MakeScope(adapters []AdapterDigest, salt string) Scope {
	if len(adapters) == 0 && salt == "" {
		return Scope{}
	}
	b := make([]byte, 0, 256)
	b = append(b, scopeDomain...)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(adapters)))
	for i := range adapters {
		b = append(b, adapters[i][:]...)
	}
	b = binary.LittleEndian.AppendUint64(b, uint64(len(salt)))
	return sha256.Sum256(append(b, salt...))
}
