package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/internal/auth"
	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/namespace"
	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/store"
	"github.com/quire-kv/quire/store/rpc"
)

// node is what the three services share.
type node struct {
	store    *store.Store
	registry *namespace.Registry
	clock    clock.Clock
	limits   Limits
	version  string
	hasDisk  bool

	dataAddress, shmSocket string // where the same service speaks frames

	panicked func(method string, value any, stack []byte)

	auth      *auth.Authenticator
	conns     *rpc.Conns
	spaces    *spaces
	tenants   *tenants
	sessions  *sessions
	instances *instances
	fetches   *budget
	watchers  *budget
	metrics   *metrics
	recorder  Recorder // nil: nothing is recorded
	eviction  EvictionSetting
	inflight  inflight
	scrubs    scrubs
	stopping  chan struct{} // closed when long-lived streams shall end

	runScratches, fetchScratches sync.Pool // of *runScratch, *fetchScratch
}

type (
	pageService struct {
		quirev1.UnimplementedPageServiceServer
		node   *node
		frames bool // the transport takes page bytes out of tier memory, and the client verifies them
	}
	namespaceService struct {
		quirev1.UnimplementedNamespaceServiceServer
		node *node
	}
	adminService struct {
		quirev1.UnimplementedAdminServiceServer
		node *node
	}
)

var serviceDescs = []*grpc.ServiceDesc{
	&quirev1.PageService_ServiceDesc, &quirev1.NamespaceService_ServiceDesc, &quirev1.AdminService_ServiceDesc,
}

// Server serves one node's store and registry over gRPC. Safe for concurrent use.
type Server struct {
	node   *node
	grpc   *grpc.Server
	health *health.Server
	policy auth.ListenPolicy

	cancel context.CancelFunc // of the goroutines below
	tasks  sync.WaitGroup     // followers, use reports
	stop   sync.Once
}

// Sizes of gRPC's own buffers, from measurements of one fetch of 1 MiB pages: a window below a few chunks makes the
// sender wait for the reader's acknowledgements.
const (
	windowBytes      = 8 << 20
	writeBufferBytes = 128 << 10
	readBufferBytes  = 128 << 10
)

// Bounds on what a peer gets before it is known.
const (
	maxHeaderBytes   = 64 << 10
	handshakeTimeout = 20 * time.Second
)

// Keepalive: a peer that is gone is found within a minute, and its session ends.
const (
	pingIdleAfter   = 30 * time.Second
	pingTimeout     = 20 * time.Second
	minPingInterval = 10 * time.Second
)

// New tells the store of every namespace of the registry and starts following it. Stop ends what New started; the
// caller closes Store and Registry after that.
func New(o Options) (*Server, error) {
	if err := o.fill(); err != nil {
		return nil, err
	}
	n := &node{
		store: o.Store, registry: o.Registry, clock: o.Clock, limits: o.Limits, version: o.Version, panicked: o.Panicked,
		dataAddress: o.DataAddress, shmSocket: o.ShmSocket, recorder: o.Recorder, eviction: o.Eviction,
		conns: rpc.NewConns(), spaces: newSpaces(o.Store, o.Clock), tenants: newTenants(o.Store, o.Registry), sessions: newSessions(o.Limits.SessionsPerPrincipal),
		instances: newInstances(o.Clock, o.Limits.InstancesPerTenant),
		fetches:   newBudget("fetches", o.Limits.FetchesPerPrincipal, o.Limits.FetchBytesPerPrincipal),
		watchers:  newBudget("watches", o.Limits.WatchersPerPrincipal, 0),
		metrics:   newMetrics(), stopping: make(chan struct{}),
	}
	n.runScratches.New = func() any { return new(runScratch) }
	n.fetchScratches.New = func() any { return new(fetchScratch) }
	for _, t := range o.Store.Status().Tiers {
		n.hasDisk = n.hasDisk || t.Tier == evict.Disk
	}
	var err error
	if n.auth, err = auth.New(auth.Options{
		Mode: o.Auth, Directory: o.Registry, Open: openMethods,
		Refused: func(string) { n.metrics.unauthenticated.Inc() },
	}); err != nil {
		return nil, err
	}
	if o.Metrics != nil {
		for _, c := range n.collectors() {
			if err := o.Metrics.Register(c); err != nil {
				return nil, fmt.Errorf("register metrics: %w", err)
			}
		}
	}
	s := &Server{node: n, policy: auth.ListenPolicy{TLS: o.TLS != nil, Mode: o.Auth, Insecure: o.Insecure}}
	n.tenants.sync() // before there are pages
	for _, ns := range o.Registry.List(everything, "", true) {
		n.spaces.set(ns)
	}
	s.build(&o)
	s.start()
	return s, nil
}

// everything is the node itself when it asks the registry.
var everything = namespace.Principal{Name: "node", Role: namespace.RoleOperator}

// openMethods need no principal: load balancers ask for health.
func openMethods(method string) bool {
	return method == healthpb.Health_Check_FullMethodName || method == healthpb.Health_Watch_FullMethodName
}

func (s *Server) build(o *Options) {
	n := s.node
	options := []grpc.ServerOption{
		grpc.ForceServerCodecV2(rpc.NewCodec()),
		grpc.StatsHandler(n.conns),
		grpc.StreamInterceptor(n.stream),
		grpc.InitialWindowSize(windowBytes), grpc.InitialConnWindowSize(windowBytes),
		grpc.WriteBufferSize(writeBufferBytes), grpc.ReadBufferSize(readBufferBytes),
		grpc.MaxHeaderListSize(maxHeaderBytes), grpc.ConnectionTimeout(handshakeTimeout),
		grpc.MaxRecvMsgSize(n.limits.MaxMessageBytes), grpc.MaxConcurrentStreams(n.limits.StreamsPerConn),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingIdleAfter, Timeout: pingTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPingInterval, PermitWithoutStream: true}),
		grpc.WaitForHandlers(true),
	}
	if o.TLS != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(o.TLS)))
	}
	s.grpc = grpc.NewServer(append(options, o.GRPC...)...)
	s.grpc.RegisterService(n.guarded(&quirev1.PageService_ServiceDesc), pageService{node: n})
	s.grpc.RegisterService(n.guarded(&quirev1.NamespaceService_ServiceDesc), namespaceService{node: n})
	s.grpc.RegisterService(n.guarded(&quirev1.AdminService_ServiceDesc), adminService{node: n})
	s.health = health.NewServer()
	healthpb.RegisterHealthServer(s.grpc, s.health)
	reflection.Register(s.grpc)
}

// Register registers the page service with a transport that speaks frames (frame.Server), guarded as it is over gRPC.
// Its Fetch does not verify what it sends whole: the client does.
func (s *Server) Register(r grpc.ServiceRegistrar) {
	d := s.node.guarded(&quirev1.PageService_ServiceDesc)
	d.Streams = slices.Clone(d.Streams)
	for i := range d.Streams {
		stream, next := &d.Streams[i], d.Streams[i].Handler
		info := &grpc.StreamServerInfo{
			FullMethod:     "/" + d.ServiceName + "/" + stream.StreamName,
			IsClientStream: stream.ClientStreams, IsServerStream: stream.ServerStreams,
		}
		stream.Handler = func(srv any, ss grpc.ServerStream) error { return s.node.stream(srv, ss, info, next) }
	}
	r.RegisterService(d, pageService{node: s.node, frames: true})
}

// Identify is the name of the principal that a connection's context speaks for, unique in the node, or its refusal.
func (s *Server) Identify(ctx context.Context) (string, error) {
	p, err := s.node.auth.Identify(ctx)
	if err != nil {
		return "", err
	}
	return principalName(p), nil
}

// Boot is the node's boot id.
func (s *Server) Boot() [16]byte { return s.node.store.Boot() }

func (s *Server) start() {
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	s.tasks.Go(func() { s.node.follow(ctx) })
	s.tasks.Go(func() { s.node.followTenants(ctx) })
	s.tasks.Go(func() { s.node.reportUse(ctx) })
}

// Serve accepts on l until Stop, which it answers with nil. It refuses a listener that others can reach unless the
// server has TLS and authentication, or Insecure; several listeners may be served at once. It closes l.
func (s *Server) Serve(l net.Listener) error {
	if l.Addr().Network() == "tcp" {
		if err := s.policy.Check(l.Addr().String()); err != nil {
			l.Close()
			return err
		}
	}
	err := s.grpc.Serve(trackedListener{l})
	if errors.Is(err, grpc.ErrServerStopped) {
		return nil
	}
	return err
}

// Stop ends the server in order: health says NOT_SERVING, new calls are refused, running calls finish, then long-lived
// streams end. When ctx ends first, connections are closed under what still runs, and its error is returned.
// Idempotent: later calls wait for the first.
func (s *Server) Stop(ctx context.Context) (err error) {
	s.stop.Do(func() { err = s.shutDown(ctx) })
	return err
}

func (s *Server) shutDown(ctx context.Context) (err error) {
	s.health.Shutdown()
	graceful := make(chan struct{})
	go func() {
		defer close(graceful)
		s.grpc.GracefulStop()
	}()
	select {
	case <-s.node.inflight.whenIdle():
	case <-ctx.Done():
	}
	close(s.node.stopping)
	select {
	case <-graceful:
	case <-ctx.Done():
		err = fmt.Errorf("stop: calls were still running: %w", ctx.Err())
		s.grpc.Stop()
		<-graceful
	}
	s.cancel()
	s.tasks.Wait()
	s.node.spaces.close()
	return err
}

// capabilities are the limits in force.
func (n *node) capabilities() *quirev1.GetCapabilitiesResponse {
	boot := n.store.Boot()
	return &quirev1.GetCapabilitiesResponse{
		MaxKeys: uint32(n.limits.MaxKeys), MaxBatchBytes: uint64(n.limits.MaxBatchBytes), MaxChunkBytes: uint32(n.limits.MaxChunkBytes),
		MaxLease: durationpb.New(n.limits.MaxLease), DefaultLease: durationpb.New(n.limits.DefaultLease),
		BootId: boot[:], Version: n.version, DataAddress: n.dataAddress, ShmSocket: n.shmSocket,
	}
}
