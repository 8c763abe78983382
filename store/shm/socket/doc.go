// Package socket is a UNIX stream socket that carries descriptors beside bytes. A descriptor goes with the next write
// and is there for the reader when it has read those bytes. It is built on Linux alone.
package socket
