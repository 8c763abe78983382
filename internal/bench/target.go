package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/quire-kv/quire/store/client"
	"github.com/quire-kv/quire/store/page"
)

// target is the server that is measured, and a session on it.
//
//	child       another process of ours: its usage is asked for
//	in process  the same, without a process: its usage is this one's
//	remote      somebody else's: its usage is not known
type target struct {
	client  *client.Client
	session *client.Session
	group   page.GroupID
	own     *conductor // in process
	child   *child     // a process of its own
	usage   Usage      // of the server, as last asked
}

// openTarget starts or reaches the server; memoryBytes is the host tier of one of our own, 0 for the blank tier.
func openTarget(ctx context.Context, o *Options, memoryBytes int64) (_ *target, err error) {
	t := &target{}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.close())
		}
	}()
	dial := o.Remote
	switch {
	case dial.Address != "":
	case o.InProcess:
		n, err := startNode(ctx, memoryBytes)
		if err != nil {
			return nil, err
		}
		t.own, dial.Address = &conductor{node: n}, n.listener.Addr().String()
	default:
		if t.child, err = startChild(o.Child, memoryBytes); err != nil {
			return nil, err
		}
		dial.Address = t.child.address
	}
	if t.client, err = client.Dial(ctx, dial); err != nil {
		return nil, err
	}
	spec := specOf(o.PageBytes)
	t.group = spec.Groups[0].ID()
	t.session, err = t.client.Open(ctx, spec)
	return t, err
}

// apart says whether the server's usage is known apart from the client's.
func (t *target) apart() bool { return t.child != nil }

// server gives one order to a server of ours.
func (t *target) server(ctx context.Context, o order) error {
	switch {
	case t.child != nil:
		a, err := t.child.ask(o)
		t.usage = a.Usage
		return err
	case t.own != nil:
		a := t.own.carryOut(ctx, &o)
		if t.usage = a.Usage; a.Error != "" {
			return errors.New(a.Error)
		}
	}
	return nil
}

// fill stores the resident pages: a server of ours does it itself, a remote one is sent them.
func (t *target) fill(ctx context.Context, o *Options) error {
	if t.child == nil && t.own == nil {
		return t.publish(ctx, o)
	}
	return t.server(ctx, order{Fill: &Fill{
		Namespace: t.session.ID(), Epoch: t.session.Epoch(), Group: t.group, Provenance: t.session.Provenance(),
		PageBytes: o.PageBytes, Pages: o.Resident,
	}})
}

// publishBatchBytes is what one publication of a remote fill sends.
const publishBatchBytes = 64 << 20

func (t *target) publish(ctx context.Context, o *Options) error {
	n := min(fillBatch, max(1, publishBatchBytes/o.PageBytes))
	items := make([]client.Item, n)
	zeros := make([]byte, o.PageBytes)
	for i := range items {
		items[i].Bytes = zeros
	}
	for at := 0; at < o.Resident; at += n {
		many := min(n, o.Resident-at)
		keys := make([]byte, 0, many*hashBytes)
		for i := range many {
			keys = appendKey(keys, storedKeys, uint64(at+i))
		}
		results, err := t.session.Publish(ctx, t.run(keys), page.View{}, nil, items[:many], client.PublishOptions{})
		if err != nil {
			return fmt.Errorf("publish page %d: %w", at, err)
		}
		if good := client.GoodPrefix(results); good < many {
			return fmt.Errorf("publish page %d: %w", at+good, results[good].Reason)
		}
	}
	return nil
}

func (t *target) run(keys []byte) client.Run { return client.Run{Group: t.group, Hashes: keys} }

func (t *target) close() error {
	var errs []error
	if t.session != nil {
		errs = append(errs, t.session.Close())
	}
	if t.client != nil {
		errs = append(errs, t.client.Close())
	}
	if t.own != nil {
		errs = append(errs, t.own.endProfile(), t.own.node.stop())
	}
	if t.child != nil {
		errs = append(errs, t.child.stop())
	}
	return errors.Join(errs...)
}

// child is a process that runs Serve.
type child struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Scanner
	address string
}

func startChild(command []string, memoryBytes int64) (_ *child, err error) {
	if len(command) == 0 {
		return nil, errors.New("no command for the server's process")
	}
	c := &child{cmd: exec.Command(command[0], append(command[1:], strconv.FormatInt(memoryBytes, 10))...)}
	c.cmd.Stderr = os.Stderr
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.out = bufio.NewScanner(out)
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the server's process: %w", err)
	}
	first, err := c.read()
	if err != nil {
		return nil, errors.Join(err, c.stop())
	}
	c.address = first.Address
	return c, nil
}

func (c *child) read() (a answer, err error) {
	if !c.out.Scan() {
		return a, errors.Join(errors.New("the server's process ended"), c.out.Err())
	}
	if err := json.Unmarshal(c.out.Bytes(), &a); err != nil {
		return a, fmt.Errorf("read from the server's process: %w", err)
	}
	if a.Error != "" {
		return a, errors.New(a.Error)
	}
	return a, nil
}

func (c *child) ask(o order) (answer, error) {
	if err := json.NewEncoder(c.in).Encode(o); err != nil {
		return answer{}, fmt.Errorf("write to the server's process: %w", err)
	}
	return c.read()
}

// stop closes the child's input, which ends it, and waits; one that does not end is killed.
func (c *child) stop() error {
	c.in.Close()
	kill := time.AfterFunc(2*nodeTimeout, func() { c.cmd.Process.Kill() })
	defer kill.Stop()
	if err := c.cmd.Wait(); err != nil {
		return fmt.Errorf("the server's process: %w", err)
	}
	return nil
}

// profile begins profiles of both sides; end writes this one's, and closing the target the server's.
func (t *target) profile(ctx context.Context, o *Options) (end func() error, err error) {
	if o.ProfileDir != "" && t.child != nil {
		dir, err := filepath.Abs(o.ProfileDir)
		if err != nil {
			return nil, err
		}
		if err := t.server(ctx, order{Profile: filepath.Join(dir, "server.pprof")}); err != nil {
			return nil, err
		}
	}
	return o.profile()
}

// profile begins a profile of this process, if one is asked for.
func (o *Options) profile() (end func() error, err error) {
	if o.ProfileDir == "" {
		return func() error { return nil }, nil
	}
	c := &conductor{}
	return c.endProfile, c.beginProfile(filepath.Join(o.ProfileDir, "client.pprof"))
}
