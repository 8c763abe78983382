// Package daemon assembles the server: config, registry, tiers, store, gRPC, health, metrics, traces, and an ordered
// stop. The serve command, the demo and the end-to-end tests all start the same one. Config is built for every
// platform; the server itself for Linux.
//
//	Start: admin HTTP -> registry -> operator token -> tiers -> store -> recording -> recovery -> gRPC, data, shm -> SERVING
//	Stop:  NOT_SERVING -> drain within the deadline -> gRPC, data, shm -> recording -> store -> registry -> traces -> admin HTTP
package daemon

import "errors"

// ErrPlatform answers Start where the server is not built.
var ErrPlatform = errors.New("the server runs on Linux only; on this system quire is the client and the tools")
