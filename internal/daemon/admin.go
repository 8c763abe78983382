package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// check is one named condition of readiness. ok is quick and safe for concurrent use. What a check that warns finds is
// told, and the node is ready all the same.
type check struct {
	name  string
	ok    func() error
	warns bool
}

// admin is the HTTP server beside gRPC:
//
//	/livez              200 while the process answers
//	/readyz             200 when every check holds, else 503
//	/livez?verbose      and /readyz?verbose name each check
//	/metrics            Prometheus
//	/debug/pprof/       profiles, where only this machine can reach them
type admin struct {
	server   *http.Server
	listener net.Listener
	done     chan error // the end of Serve
}

const (
	adminHeaderTimeout = 5 * time.Second
	adminHeaderBytes   = 16 << 10
	maxScrapesInFlight = 4 // each walks every metric
)

func startAdmin(listener net.Listener, profiles bool, checks []check, metrics *prometheus.Registry) *admin {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", health("livez", []check{{name: "ping", ok: func() error { return nil }}}))
	mux.HandleFunc("GET /readyz", health("readyz", checks))
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapesInFlight}))
	if profiles {
		mux.HandleFunc("/debug/pprof/", pprof.Index)
		mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	}
	a := &admin{
		server: &http.Server{
			Handler: mux, ReadHeaderTimeout: adminHeaderTimeout, MaxHeaderBytes: adminHeaderBytes,
		},
		listener: listener,
		done:     make(chan error, 1),
	}
	go func() { a.done <- a.server.Serve(listener) }()
	return a
}

// stop ends the listener and waits for answers in flight, until ctx ends.
func (a *admin) stop(ctx context.Context) error {
	err := a.server.Shutdown(ctx)
	if err != nil {
		err = errors.Join(err, a.server.Close())
	}
	if end := <-a.done; !errors.Is(end, http.ErrServerClosed) {
		err = errors.Join(err, end)
	}
	return err
}

// health answers with the outcome of checks, each named when asked for ?verbose or when one fails: [+] holds, [-] fails,
// [!] warns.
func health(name string, checks []check) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var lines strings.Builder
		failed := 0
		for _, c := range checks {
			err := c.ok()
			switch {
			case err == nil:
				fmt.Fprintf(&lines, "[+]%s ok\n", c.name)
			case c.warns:
				fmt.Fprintf(&lines, "[!]%s: %v\n", c.name, err)
			default:
				failed++
				fmt.Fprintf(&lines, "[-]%s: %v\n", c.name, err)
			}
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		if failed > 0 {
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprintf(w, "%s%s: %d of %d checks failed\n", lines.String(), name, failed, len(checks))
			return
		}
		if r.URL.Query().Has("verbose") {
			fmt.Fprint(w, lines.String())
		}
		fmt.Fprintf(w, "%s: ok\n", name)
	}
}
