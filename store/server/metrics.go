package server

import (
	"context"
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/core"
	"github.com/quire-kv/quire/store/rpc"
)

// requestSeconds are the buckets of request times: from a probe's microseconds to a lease's minute.
var requestSeconds = []float64{50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 100e-3, 500e-3, 2.5, 10, 60}

// outcomeNames are label values, by core.Outcome.
var outcomeNames = [...]string{
	core.OK: "ok", core.Granted: "granted", core.Present: "present", core.Committed: "committed",
	core.Miss: "miss", core.Refused: "refused",
}

// metrics are what the server counts itself; what the store counts is collected by nodeCollector. All labels are
// from closed sets: methods of the three services, status codes, outcomes and reasons.
type metrics struct {
	requests *prometheus.CounterVec   // method, code
	seconds  *prometheus.HistogramVec // method
	pages    pageCollector

	answered                total // lookups; no metric of its own: quire_requests_total has it
	hits, misses            total
	fetchBytes, writeBytes  *byTransport
	slowClients             prometheus.Counter
	panics, unauthenticated prometheus.Counter

	begin, commit, fetch, del, touch, pin, report *methodMetrics
	methods                                       map[string]*methodMetrics // by full method; read-only
	other                                         *methodMetrics
}

// methodMetrics are one method's series, found once, so that nothing is hashed per call or page.
type methodMetrics struct {
	name     string
	seconds  prometheus.Observer
	requests *prometheus.CounterVec
	byCode   [codes.Unauthenticated + 1]lazyCounter
	byPage   [len(outcomeNames)][reason.Count]total
}

// total is a number that grows, read by /metrics and by Status.
type total struct{ atomic.Uint64 }

func (t *total) collector(name, help string) prometheus.Collector {
	return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, func() float64 { return float64(t.Load()) })
}

// lazyCounter is a series of a vector, made when first counted: most pairs of labels never occur.
type lazyCounter struct {
	made atomic.Pointer[prometheus.Counter]
}

func (l *lazyCounter) inc(of *prometheus.CounterVec, labels ...string) {
	c := l.made.Load()
	if c == nil {
		found := of.WithLabelValues(labels...)
		c = &found
		l.made.Store(c)
	}
	(*c).Inc()
}

func counter(name, help string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
}

// transport is how a call came; transportNames are label values.
type transport int

const (
	overGRPC transport = iota
	overData
	overShm
	numTransports
)

var transportNames = [numTransports]string{overGRPC: "grpc", overData: "data", overShm: "shm"}

// transport of a call to s.
func (s pageService) transport(ctx context.Context) transport {
	switch {
	case !s.frames:
		return overGRPC
	case rpc.SharingFrom(ctx) != nil:
		return overShm
	}
	return overData
}

// byTransport is a total for each transport.
type byTransport struct {
	desc *prometheus.Desc
	of   [numTransports]total
}

func newByTransport(name, help string) *byTransport {
	return &byTransport{desc: prometheus.NewDesc(name, help, []string{"transport"}, nil)}
}

// all is the sum.
func (b *byTransport) all() (sum uint64) {
	for t := range b.of {
		sum += b.of[t].Load()
	}
	return sum
}

// Describe names the one metric.
func (b *byTransport) Describe(out chan<- *prometheus.Desc) { out <- b.desc }

// Collect reads each transport's total.
func (b *byTransport) Collect(out chan<- prometheus.Metric) {
	for t, label := range transportNames {
		out <- prometheus.MustNewConstMetric(b.desc, prometheus.CounterValue, float64(b.of[t].Load()), label)
	}
}

// pageCollector gives the totals of pages of all methods; most triples of labels never occur.
type pageCollector struct {
	desc    *prometheus.Desc
	methods []*methodMetrics
}

// Describe names the one metric.
func (c *pageCollector) Describe(out chan<- *prometheus.Desc) { out <- c.desc }

// Collect reads what was counted.
func (c *pageCollector) Collect(out chan<- prometheus.Metric) {
	for _, m := range c.methods {
		for o := range m.byPage {
			for why := range m.byPage[o] {
				if n := m.byPage[o][why].Load(); n > 0 {
					out <- prometheus.MustNewConstMetric(c.desc, prometheus.CounterValue, float64(n), m.name, outcomeNames[o], reason.Reason(why).String())
				}
			}
		}
	}
}

func newMetrics() *metrics {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "quire_requests_total", Help: "Calls answered, by method and status code."}, []string{"method", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "quire_request_seconds", Help: "Time from a call's arrival to its answer; of a stream, to its end.", Buckets: requestSeconds,
		}, []string{"method"}),
		pages:           pageCollector{desc: prometheus.NewDesc("quire_pages_total", "Pages answered for, by method, outcome and reason.", []string{"method", "outcome", "reason"}, nil)},
		fetchBytes:      newByTransport("quire_fetch_bytes_total", "Payload bytes that Fetch handed to a transport, or named to a client that maps them."),
		writeBytes:      newByTransport("quire_write_bytes_total", "Payload bytes received by WritePages."),
		slowClients:     counter("quire_slow_clients_total", "Connections broken because a Fetch made no progress."),
		panics:          counter("quire_panics_total", "Handlers that panicked and were answered INTERNAL."),
		unauthenticated: counter("quire_unauthenticated_total", "Calls turned away for want of a valid token or certificate."),
		methods:         map[string]*methodMetrics{},
	}
	for _, d := range serviceDescs {
		for _, method := range d.Methods {
			m.add(d.ServiceName, method.MethodName)
		}
		for _, stream := range d.Streams {
			m.add(d.ServiceName, stream.StreamName)
		}
	}
	m.other = m.method("other")
	m.begin, m.commit, m.fetch = m.page("BeginPublish"), m.page("CommitPublish"), m.page("Fetch")
	m.del, m.touch, m.pin, m.report = m.page("BatchDelete"), m.page("Touch"), m.page("Pin"), m.page("ReportCorrupt")
	return m
}

func (m *metrics) add(service, method string) {
	m.methods["/"+service+"/"+method] = m.method(method)
}

func (m *metrics) page(method string) *methodMetrics {
	return m.methods["/"+quirev1.PageService_ServiceDesc.ServiceName+"/"+method]
}

func (m *metrics) method(name string) *methodMetrics {
	mm := &methodMetrics{name: name, seconds: m.seconds.WithLabelValues(name), requests: m.requests}
	m.pages.methods = append(m.pages.methods, mm)
	return mm
}

// done counts one call.
func (m *metrics) done(fullMethod string, err error, took time.Duration) {
	mm := m.methods[fullMethod]
	if mm == nil {
		mm = m.other
	}
	if c := status.Code(err); int(c) < len(mm.byCode) {
		mm.byCode[c].inc(mm.requests, mm.name, c.String())
	}
	mm.seconds.Observe(took.Seconds())
}

// lookups counts the bits of one answer.
func (m *metrics) lookups(keys int, present []byte) {
	hits := 0
	for _, b := range present {
		hits += bits.OnesCount8(b)
	}
	m.answered.Add(1)
	m.hits.Add(uint64(hits))
	m.misses.Add(uint64(keys - hits))
}

// page counts one page of a batch.
func (m *methodMetrics) page(o core.Outcome, r reason.Reason) {
	if int(o) >= len(m.byPage) || int(r) >= len(m.byPage[0]) {
		return
	}
	m.byPage[o][r].Add(1)
}

// collectors are all that New registers.
func (n *node) collectors() []prometheus.Collector {
	m := n.metrics
	return []prometheus.Collector{
		m.requests, m.seconds, &m.pages,
		m.hits.collector("quire_lookup_hits_total", "Keys that BatchExists answered yes for."),
		m.misses.collector("quire_lookup_misses_total", "Keys that BatchExists answered no for."),
		m.fetchBytes, m.writeBytes, m.slowClients, m.panics,
		m.unauthenticated, nodeCollector{n}, tenantCollector{n},
	}
}
