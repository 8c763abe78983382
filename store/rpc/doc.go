// Package rpc is what both ends of the gRPC wire share: the one error map, and the codec that lends page bytes to
// gRPC and takes them from it without a copy of its own.
package rpc
