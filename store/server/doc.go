// Package server is the gRPC face of one node: it authenticates, checks and bounds each call of quire.v1 and carries
// it to store.Store and namespace.Registry. It decides nothing about pages or identity itself.
//
//	conn ── track ──> grpc ── observe, recover, authenticate ──> handler
//	                                                               │ admit: access, epoch, provenance
//	                      namespace.Registry <─────────────────────┤
//	                              │ changes                        │
//	                              └────── spaces.push ──────> store.Store
//
// A stranger to a namespace gets, for every call, exactly what it would get for one that does not exist.
package server
