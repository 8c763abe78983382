package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/quire-kv/quire/store/client"
	"github.com/quire-kv/quire/store/page"
)

// target is the server that is measured, and a session on it.
//
//	child       another process of ours: its usage is asked for
//	in process  the same, without a process: its usage is this one's
//	remote      somebody else's: its usage is not known
type target struct {
	sockets string // directory of the server's UNIX socket: the data directory's path may be too long for one
	client  *client.Client
	session *client.Session
	group   page.GroupID
	own     *conductor // in process
	child   *child     // a process of its own
	sets    uint64     // of keys, given out
	usage   Usage      // of the server, as last asked
	state   State      // likewise
}

// openTarget starts the server of our own that n says, or reaches the one that is meant.
func openTarget(ctx context.Context, o *Options, n Node) (_ *target, err error) {
	t := &target{}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.close())
		}
	}()
	dial := o.Remote
	dial.Transport = o.Transport
	if dial.Address == "" {
		if t.sockets, err = os.MkdirTemp("", "quire-bench-"); err != nil {
			return nil, err
		}
		n.Socket = filepath.Join(t.sockets, "quire.sock")
	}
	switch {
	case dial.Address != "":
	case o.InProcess:
		n, err := startNode(ctx, n)
		if err != nil {
			return nil, err
		}
		t.own, dial.Address = &conductor{node: n}, n.address
	default:
		if t.child, err = startChild(o.Child, n); err != nil {
			return nil, err
		}
		dial.Address = t.child.address
	}
	if t.client, err = client.Dial(ctx, dial); err != nil {
		return nil, err
	}
	spec := specOf(o.PageBytes)
	t.group = spec.Groups[0].ID()
	if t.session, err = t.client.Open(ctx, spec); err != nil {
		return nil, err
	}
	// The first call over shared memory makes the server keep the namespace's pages where they can be mapped.
	_, err = t.session.Exists(ctx, t.run(appendKey(nil, otherKeys, 0)), 0)
	return t, err
}

// apart says whether the server's usage is known apart from the client's.
func (t *target) apart() bool { return t.child != nil }

// server gives one order to a server of ours.
func (t *target) server(ctx context.Context, o order) error {
	switch {
	case t.child != nil:
		a, err := t.child.ask(o)
		t.usage, t.state = a.Usage, a.State
		return err
	case t.own != nil:
		a := t.own.carryOut(ctx, &o)
		if t.usage, t.state = a.Usage, a.State; a.Error != "" {
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
	return t.server(ctx, order{Fill: t.fillOf(o)})
}

func (t *target) fillOf(o *Options) *Fill {
	return &Fill{
		Namespace: t.session.ID(), Epoch: t.session.Epoch(), Group: t.group, Provenance: t.session.Provenance(),
		PageBytes: o.PageBytes, Pages: o.Resident,
	}
}

func (t *target) publish(ctx context.Context, o *Options) error {
	n := batchOf(o.PageBytes)
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

// stateNow asks a server of ours for its state.
func (t *target) stateNow(ctx context.Context) (State, error) {
	err := t.server(ctx, order{Usage: true})
	return t.state, err
}

// bareServer has the server of ours serve the bare loop and answers where.
func (t *target) bareServer(ctx context.Context, b Bare) (address string, err error) {
	if t.child == nil {
		return "", errors.New("the bare loop needs a server in a process of its own")
	}
	a, err := t.child.ask(order{Bare: &b})
	return a.Address, err
}

// keySet is a set of keys that nothing on this target uses.
func (t *target) keySet() uint64 {
	t.sets++
	return firstSet + t.sets
}

// firstSet is beyond the sets with names.
const firstSet = 100

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
	if t.sockets != "" {
		errs = append(errs, os.RemoveAll(t.sockets))
	}
	return errors.Join(errs...)
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
