package namespace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/page"
)

// Options of a Registry. Zero values are defaults.
type Options struct {
	Now           func() time.Time // default time.Now
	MaxNamespaces int              // of a tenant, retired ones included (the oldest of those goes first); default 4096
	// MaxProvenances bounds those of a namespace: versions, builds and writer shapes of all its lives; default 1024.
	MaxProvenances int
}

func (o *Options) fill() error {
	if o.Now == nil {
		o.Now = time.Now
	}
	o.MaxNamespaces = cmp.Or(o.MaxNamespaces, 4096)
	o.MaxProvenances = cmp.Or(o.MaxProvenances, 1024)
	if o.MaxNamespaces < 1 || o.MaxProvenances < 1 || o.MaxProvenances > MaxPuts-8 { // forgetting takes one change
		return fmt.Errorf("%d namespaces, %d provenances: write 1 or more, and at most %d provenances", o.MaxNamespaces, o.MaxProvenances, MaxPuts-8)
	}
	return nil
}

// Registry is concrete: its rules are pure decisions over records in a small transactional key-value Backend, so
// Pebble, etcd and the memory model differ in four methods and share one suite. It answers reads from a snapshot
// in memory that the backend's watch keeps current; a change is in the snapshot before it is answered. Safe for
// concurrent use. Every refusal is a *Refusal and changes nothing.
//
//	Open, Waive... --> read, decide, write if unchanged --> Backend --> watch --> snapshot --> Access, List, Watch...
//	                        ^______ conflict: again _____|
type Registry struct {
	b    Backend
	o    Options
	snap atomic.Pointer[snapshot] // replaced by the follower only
	turn chan struct{}            // held by the one change of this process that is under way

	stop    context.CancelFunc
	stopped chan struct{} // closed when the follower has ended
	failed  error         // why, set before stopped is closed
	close   sync.Once
	closed  error
}

// NewRegistry loads b and follows it until Close, which closes b. When it fails, b is left open.
func NewRegistry(ctx context.Context, b Backend, o Options) (*Registry, error) {
	if err := o.fill(); err != nil {
		return nil, fmt.Errorf("registry options: %w", err)
	}
	r := &Registry{b: b, o: o, turn: make(chan struct{}, 1), stopped: make(chan struct{})}
	first, err := load(ctx, b)
	if err != nil {
		return nil, fmt.Errorf("load registry: %w", err)
	}
	r.snap.Store(first)
	follow, stop := context.WithCancel(context.Background())
	r.stop = stop
	go r.follow(follow)
	return r, nil
}

// Close stops following and closes the backend. Idempotent.
func (r *Registry) Close() error {
	r.close.Do(func() {
		r.stop()
		<-r.stopped
		r.closed = r.b.Close()
	})
	return r.closed
}

// Access answers the namespace if by may do what right asks, from memory, without allocating. Strangers get
// reason.Absent, exactly as for a namespace that does not exist; those who may see but not do get Unauthorized.
// Lifecycle is not checked here.
func (r *Registry) Access(by Principal, id page.NamespaceID, right Right) (*Namespace, reason.Reason) {
	e := r.snap.Load().spaces[id]
	if e == nil {
		return nil, reason.Absent
	}
	if why := e.allows(by, right); why != reason.None {
		return nil, why
	}
	return e.Namespace, reason.None
}

// Provenance is the canonical provenance that some Open registered under this id for this namespace. From memory; not
// to be written to.
func (r *Registry) Provenance(id page.NamespaceID, p ProvenanceID) (canonical []byte, ok bool) {
	if e := r.snap.Load().spaces[id]; e != nil {
		canonical, ok = e.provenances[p]
	}
	return canonical, ok
}

// List answers what by may see of tenant (operators: empty is all), sorted by model, revision, id.
func (r *Registry) List(by Principal, tenant string, retired bool) []*Namespace {
	out := slices.DeleteFunc(r.snap.Load().of(tenant), func(n *Namespace) bool {
		return n.allows(by, RightRead) != reason.None || n.State == Retired && !retired
	})
	slices.SortStableFunc(out, func(a, b *Namespace) int {
		x, y := &a.Spec.Model, &b.Spec.Model
		return cmp.Or(strings.Compare(x.ID, y.ID), slices.Compare(x.Weights[:], y.Weights[:]))
	})
	return out
}

// Negotiate is Open without effect. would is nil when Open would succeed. Siblings of other tenants are never shown.
func (r *Registry) Negotiate(by Principal, tenant string, s *Spec) (id page.NamespaceID, exists bool, siblings []Sibling, would *Refusal) {
	s, tenant, would = checkOpen(by, tenant, s)
	if would != nil {
		return id, false, nil, would
	}
	p, would := planOpen(r.snap.Load().of(tenant), tenant, s, 0, r.wall())
	return p.id, p.have != nil && p.have.State != Retired, p.siblings, would
}

// Watch calls each with every namespace in order of id, then with every one that changed, until ctx ends (its error),
// each answers an error (that), or the registry is closed (ErrClosed). Changes that come while each runs are given as
// the newest state, so a slow watcher falls behind but keeps nothing: an epoch that moved on says that the earlier one
// has ended. A forgotten namespace was retired before and is not mentioned again.
func (r *Registry) Watch(ctx context.Context, each func(*Namespace) error) error {
	seen := Revision(-1)
	for {
		s := r.snap.Load()
		for _, n := range s.of("") {
			if n.Revision <= seen {
				continue
			}
			if err := each(n); err != nil {
				return err
			}
		}
		seen = s.revision
		select {
		case <-s.newer:
		case <-ctx.Done():
			return ctx.Err()
		case <-r.stopped:
			return r.ended()
		}
	}
}

// wall is now as it is stored.
func (r *Registry) wall() time.Time { return r.o.Now().UTC().Round(0) }

// load reads everything.
func load(ctx context.Context, b Backend) (*snapshot, error) {
	records, at, err := b.Read(ctx, nil)
	if err != nil {
		return nil, err
	}
	return newSnapshot().with(records, at)
}

// reloadPause keeps a backend that is away from being asked in a tight loop.
const reloadPause = 100 * time.Millisecond

// follow keeps the snapshot current until ctx ends, the backend closes or a record cannot be read.
func (r *Registry) follow(ctx context.Context) {
	defer close(r.stopped)
	for {
		err := r.b.Watch(ctx, r.snap.Load().revision, func(changed []Record) error {
			s, err := r.snap.Load().with(changed, 0)
			if err == nil {
				r.replace(s)
			}
			return err
		})
		for err != nil && ctx.Err() == nil && !errors.Is(err, ErrClosed) && !errors.Is(err, ErrRecord) {
			s, failed := load(ctx, r.b) // the watch broke or fell behind
			if err = failed; err == nil {
				r.replace(s)
				break
			}
			pause := time.NewTimer(reloadPause)
			select {
			case <-pause.C:
			case <-ctx.Done():
				pause.Stop()
			}
		}
		if err != nil {
			r.failed = err
			return
		}
	}
}

func (r *Registry) replace(s *snapshot) { close(r.snap.Swap(s).newer) }

// await returns once the snapshot has what revision at has.
func (r *Registry) await(ctx context.Context, at Revision) error {
	for {
		s := r.snap.Load()
		if s.revision >= at {
			return nil
		}
		select {
		case <-s.newer:
		case <-ctx.Done():
			return fmt.Errorf("wait for the registry's own change: %w", ctx.Err())
		case <-r.stopped:
			return r.ended()
		}
	}
}

// ended is why the follower stopped.
func (r *Registry) ended() error {
	if r.failed == nil || errors.Is(r.failed, context.Canceled) {
		return ErrClosed
	}
	return fmt.Errorf("registry stopped following: %w", r.failed)
}
