package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/pprof"

	"github.com/quire-kv/quire/internal/daemon"
)

// The two processes speak lines of JSON over the child's standard input and output: one order, one answer, in turn.
// The first answer comes unasked and says where the server listens. The end of input ends the child.

// order is a line to the child: one of its fields is set.
type order struct {
	Usage   bool   `json:"usage,omitempty"`
	Settle  bool   `json:"settle,omitempty"` // usage after the collector has given back what it can
	Fill    *Fill  `json:"fill,omitempty"`
	Bare    *Bare  `json:"bare,omitempty"`    // serve the bare loop too
	Profile string `json:"profile,omitempty"` // begin a CPU profile into this file, written at the end
}

// answer is a line from the child.
type answer struct {
	Address string `json:"address,omitempty"`
	Usage   Usage  `json:"usage"`
	State   State  `json:"state"`
	Error   string `json:"error,omitempty"`
}

// Serve runs a server for a benchmark of another process, which speaks over in and out, until in ends or ctx does.
// what is the Node as JSON. It is for processes that do nothing else: the collector is set up as for a server.
func Serve(ctx context.Context, what string, in io.Reader, out io.Writer) (err error) {
	ballast := daemon.RareCollections(os.Getenv)
	defer runtime.KeepAlive(ballast)
	var o Node
	if err := json.Unmarshal([]byte(what), &o); err != nil {
		return fmt.Errorf("read what to serve: %w", err)
	}
	n, err := startNode(ctx, o)
	if err != nil {
		return fmt.Errorf("start server: %w", err)
	}
	defer func() { err = errors.Join(err, n.stop()) }()
	lines := json.NewEncoder(out)
	if err := lines.Encode(answer{Address: n.address}); err != nil {
		return err
	}
	c := &conductor{node: n}
	defer func() { err = errors.Join(err, c.end()) }()
	for orders := bufio.NewScanner(in); orders.Scan() && ctx.Err() == nil; {
		var o order
		if err := json.Unmarshal(orders.Bytes(), &o); err != nil {
			return fmt.Errorf("read order: %w", err)
		}
		if err := lines.Encode(c.carryOut(ctx, &o)); err != nil {
			return err
		}
	}
	return nil
}

// conductor carries out orders on the node of this process.
type conductor struct {
	node    *node
	bare    *bareServer // nil: none
	profile *os.File
}

func (c *conductor) carryOut(ctx context.Context, o *order) (a answer) {
	var err error
	switch {
	case o.Fill != nil:
		err = c.node.fill(ctx, *o.Fill)
	case o.Bare != nil:
		if c.bare, err = serveBare(*o.Bare); err == nil {
			a.Address = c.bare.address
		}
	case o.Profile != "":
		err = c.beginProfile(o.Profile)
	}
	if err != nil {
		a.Error = err.Error()
	}
	if o.Settle {
		a.Usage = settled()
	} else {
		a.Usage = ownUsage()
	}
	if c.node != nil {
		a.State = c.node.state()
	}
	return a
}

func (c *conductor) end() error {
	c.bare.stop()
	return c.endProfile()
}

func (c *conductor) beginProfile(path string) (err error) {
	if c.profile, err = os.Create(path); err != nil {
		return fmt.Errorf("make profile: %w", err)
	}
	return pprof.StartCPUProfile(c.profile)
}

func (c *conductor) endProfile() error {
	if c.profile == nil {
		return nil
	}
	pprof.StopCPUProfile()
	return c.profile.Close()
}
