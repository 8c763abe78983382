package server

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

var update = flag.Bool("update", false, "write the list of metrics anew")

const (
	metricsDoc = "../../docs/metrics.md"
	listBegin  = "<!-- list: held equal to the code by a test -->\n"
	listEnd    = "<!-- end of list -->\n"
)

var descForm = regexp.MustCompile(`^Desc\{fqName: "([^"]*)", help: "([^"]*)",(?: unit: "[^"]*",)? constLabels: \{\}, variableLabels: \{([^}]*)\}\}$`)

// metricList is what the server registers, as the table of the documentation.
func metricList(t *testing.T) string {
	t.Helper()
	n := &node{metrics: newMetrics()}
	kinds := map[string]string{"quire_request_seconds": "histogram", "quire_tier_victim_score": "histogram"}
	for _, m := range nodeMetrics {
		kinds[m.name] = "gauge"
		if m.kind == counted {
			kinds[m.name] = "counter"
		}
	}
	for _, m := range tenantMetrics {
		if m.kind == gauge {
			kinds[m.name] = "gauge"
		}
	}
	var b strings.Builder
	b.WriteString("| metric | type | labels | meaning |\n|---|---|---|---|\n")
	for _, c := range n.collectors() {
		descs := make(chan *prometheus.Desc, 100)
		c.Describe(descs)
		close(descs)
		for d := range descs {
			m := descForm.FindStringSubmatch(d.String())
			if m == nil {
				t.Fatalf("cannot read %s", d)
			}
			kind := kinds[m[1]]
			if kind == "" {
				kind = "counter"
			}
			labels := "`" + strings.ReplaceAll(m[3], ",", "`, `") + "`"
			if m[3] == "" {
				labels = ""
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", m[1], kind, labels, m[2])
		}
	}
	return b.String()
}

// The documented list is the registered one.
func TestMetricsDocumented(t *testing.T) {
	raw, err := os.ReadFile(metricsDoc)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(raw), listBegin)
	listed, after, ok2 := strings.Cut(rest, listEnd)
	if !ok || !ok2 {
		t.Fatalf("%s has no list", metricsDoc)
	}
	want := metricList(t)
	if *update {
		if err := os.WriteFile(metricsDoc, []byte(before+listBegin+want+listEnd+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if listed != want {
		t.Errorf("%s differs from what is registered; run go test ./store/server -run Documented -update\n%s", metricsDoc, want)
	}
}

// Names follow Prometheus' habits: one prefix, base units, counters in _total.
func TestMetricNames(t *testing.T) {
	for _, line := range strings.Split(strings.TrimSpace(metricList(t)), "\n")[2:] {
		cells := strings.Split(line, " | ")
		name, kind := strings.Trim(cells[0], "| `"), cells[1]
		if !strings.HasPrefix(name, "quire_") || strings.HasSuffix(name, "_total") != (kind == "counter") {
			t.Errorf("%s is a %s", name, kind)
		}
		for _, unit := range []string{"_ms", "_kb", "_mb", "_millis", "_percent"} {
			if strings.Contains(name, unit) {
				t.Errorf("%s is not in base units", name)
			}
		}
	}
}
