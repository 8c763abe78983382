package namespace

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/page"
)

// maxTries bounds how often a change is decided again. Each conflict means that another process got through.
const maxTries = 64

// change is one change under way: what it read, at which revision, and what it wants to write.
type change struct {
	id   string // random: finds its own traces after an unknown outcome
	try  int    // from 0
	ctx  context.Context
	b    Backend
	snap *snapshot // saves decoding what it has at the same revision
	at   Revision
	read [][]byte
	puts []Record
}

// commit decides and writes until the backend takes it, and answers when the snapshot has it. decide is called again
// after a conflict or an unknown outcome, with fresh reads; its error is the answer. The revision is that of the
// write, or of the reads when there was nothing to write.
func (r *Registry) commit(ctx context.Context, decide func(c *change) error) (Revision, error) {
	select {
	case r.turn <- struct{}{}: // changes of one process take turns rather than make each other retry
		defer func() { <-r.turn }()
	case <-ctx.Done():
		return 0, fmt.Errorf("wait for the registry's turn: %w", ctx.Err())
	}
	id := newChangeID()
	for try := range maxTries {
		c := &change{id: id, try: try, ctx: ctx, b: r.b, snap: r.snap.Load()}
		switch err := decide(c); {
		case errors.Is(err, errMade):
			return c.at, r.await(ctx, c.at)
		case err != nil:
			return 0, err
		}
		at, err := r.b.Write(ctx, c.at, c.read, c.puts)
		switch {
		case err == nil:
			return at, r.await(ctx, at)
		case errors.Is(err, ErrConflict), errors.Is(err, ErrOutcomeUnknown):
		default:
			return 0, fmt.Errorf("write registry: %w", err)
		}
	}
	return 0, refuse(reason.Busy, "", "the registry changed %d times meanwhile: try again", maxTries)
}

// errMade is what decide answers when it finds that an earlier try went through: there is nothing left to check.
var errMade = errors.New("registry: an earlier try went through")

// newChangeID is 64 random bits.
func newChangeID() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

const maxRemembered = 16 // marks of a namespace: as many changes by others fit between a write and reading again

// put writes n, which the change owns, with the mark of this try.
func (c *change) put(n *Namespace) {
	n.changes = append(n.changes, c.id+"."+strconv.Itoa(c.try))
	n.changes = n.changes[max(0, len(n.changes)-maxRemembered):]
	c.puts = append(c.puts, encodeNamespace(n))
}

// made answers which earlier try of the change went through although its outcome was unknown: n bears its mark. What
// that try decided is the answer, whatever others have made of n since.
func (c *change) made(n *Namespace) (try int, ok bool) {
	if n == nil {
		return 0, false
	}
	for _, mark := range n.changes {
		if number, mine := strings.CutPrefix(mark, c.id+"."); mine {
			try, err := strconv.Atoi(number)
			return try, err == nil && try < c.try
		}
	}
	return 0, false
}

// records reads a prefix. Later reads may be newer than the first: the write, even of nothing, checks them all
// against the revision of the first.
func (c *change) records(prefix []byte) ([]Record, error) {
	records, at, err := c.b.Read(c.ctx, prefix)
	if err != nil {
		return nil, fmt.Errorf("read registry: %w", err)
	}
	if len(c.read) == 0 {
		c.at = at
	}
	c.read = append(c.read, prefix)
	return records, nil
}

// spaces reads the namespaces of a tenant, by id.
func (c *change) spaces(tenant string) ([]*Namespace, error) {
	records, err := c.records(tenantPrefix(kindNamespace, tenant))
	if err != nil {
		return nil, err
	}
	out := make([]*Namespace, len(records))
	for i, rec := range records {
		if out[i], err = c.decode(rec); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (c *change) decode(rec Record) (*Namespace, error) {
	if _, id, err := cutNamespaceKey(rec.Key); err == nil {
		if e := c.snap.spaces[id]; e != nil && e.Revision == rec.Revision {
			return e.Namespace, nil
		}
	}
	return decodeNamespace(rec)
}

// floor reads the highest epoch of the tenant's forgotten namespaces.
func (c *change) floor(tenant string) (page.Epoch, error) {
	key := tenantPrefix(kindEpochs, tenant)
	records, err := c.records(key)
	if err != nil {
		return 0, err
	}
	for _, rec := range records {
		var x epochsRecord
		if bytes.Equal(rec.Key, key) {
			err := decodeRecord(rec.Value, &x)
			return x.Highest, err
		}
	}
	return 0, nil
}

// update changes one namespace as f says. f gets what is current and the tenant's others; it answers a clone to
// write, or nil for nothing to do. Strangers are told Absent before f is asked.
func (r *Registry) update(ctx context.Context, by Principal, id page.NamespaceID,
	f func(c *change, n *Namespace, spaces []*Namespace) (*Namespace, *Refusal)) (*Namespace, error) {
	tenant, err := r.tenantOf(ctx, by, id)
	if err != nil {
		return nil, err
	}
	var out, written *Namespace
	tries := make(map[int]*Namespace) // what each decided
	at, err := r.commit(ctx, func(c *change) error {
		written = nil
		spaces, err := c.spaces(tenant)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(spaces, func(n *Namespace) bool { return n.ID == id })
		if i < 0 || spaces[i].allows(by, RightRead) != reason.None {
			return unseen(by)
		}
		out = spaces[i]
		if try, ok := c.made(out); ok {
			tries[try].Revision = out.Revision
			out = tries[try]
			return errMade
		}
		next, refused := f(c, out, spaces)
		if refused != nil {
			return refused
		}
		if next != nil {
			c.put(next)
			written, tries[c.try] = next, next
		}
		return nil
	})
	switch {
	case err != nil:
		return nil, err
	case written != nil:
		written.Revision = at
		return written, nil
	}
	return out, nil
}

// tenantOf finds whose namespace id is. What the snapshot lacks may be another process's newest.
func (r *Registry) tenantOf(ctx context.Context, by Principal, id page.NamespaceID) (string, error) {
	e := r.snap.Load().spaces[id]
	if e == nil {
		_, at, err := r.b.Read(ctx, []byte{kindEpochs})
		if err != nil {
			return "", fmt.Errorf("read registry: %w", err)
		}
		if err := r.await(ctx, at); err != nil {
			return "", err
		}
		if e = r.snap.Load().spaces[id]; e == nil {
			return "", unseen(by)
		}
	}
	return e.Tenant, nil
}
