// Package shm serves the page service to clients on the same host: frames over a UNIX socket, page bytes through memory
// that both ends have mapped. It decides nothing about pages: the handlers are those of every other transport, and only
// how bytes are named to the client is different.
//
//	client ── frames ──> frame.Server ──> handlers of store/server
//	   ^                      │ Refer(bytes of a region)
//	   │                      v
//	   └── slab descriptors ─ conn ──> store/host: where the bytes lie, and of which life
//
// A client gets descriptors only of slabs whose pages it is just being served, so only of namespaces that it may read:
// such a slab holds pages of one namespace's epoch alone. What ends with its connection: its calls, its session, the
// references it holds, and what it gave for staging.
package shm
