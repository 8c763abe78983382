//go:build !linux

package frame

import (
	"net"
	"syscall"
)

func wireOf(c net.Conn) wire { return newStream(c) }

func peerGone(syscall.RawConn) bool { return false }

func tune(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok {
		t.SetNoDelay(true)
		t.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: keepAliveIdle, Interval: keepAliveInterval, Count: keepAliveCount})
	}
}
