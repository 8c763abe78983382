package main

import (
	"fmt"
	"os"

	"github.com/go-analyze/charts"
)

// Size of one panel, in the units of the drawing.
const (
	panelWidth  = 900
	panelHeight = 460
	panelEdge   = 12
	panelRight  = 150 // room for the names
	panelTop    = 44
)

// plotReplay draws a panel for each trace and model: capacities to the right, upwards how much of the certified bound each
// policy saves.
func plotReplay(path string, r *replayReport) error {
	panels := 0
	for i := range r.Traces {
		panels += len(r.Traces[i].Models)
	}
	p := charts.NewPainter(charts.PainterOptions{OutputFormat: charts.ChartOutputSVG, Width: panelWidth, Height: max(1, panels) * panelHeight})
	p.FilledRect(0, 0, panelWidth, max(1, panels)*panelHeight, charts.ColorWhite, charts.ColorWhite, 0)
	top := 0
	for i := range r.Traces {
		t := &r.Traces[i]
		for k := range t.Models {
			box := charts.Box{Left: 0, Right: panelWidth, Top: top, Bottom: top + panelHeight}
			if err := p.Child(charts.PainterBoxOption(box)).LineChart(panel(t, &t.Models[k])); err != nil {
				return fmt.Errorf("draw %s: %w", path, err)
			}
			top += panelHeight
		}
	}
	image, err := p.Bytes()
	if err != nil {
		return fmt.Errorf("draw %s: %w", path, err)
	}
	return os.WriteFile(path, image, 0o644)
}

func panel(t *replayTrace, m *replayCost) charts.LineChartOption {
	var names, labels []string
	var lines [][]float64
	for i := range m.Capacities {
		c := &m.Capacities[i]
		labels = append(labels, fmt.Sprintf("%.2g %%", c.Percent))
		for k, r := range append([]replayRow{c.Belady}, c.Policies...) {
			if i == 0 {
				names, lines = append(names, r.Policy), append(lines, nil)
			}
			lines[k] = append(lines[k], 100*r.OfUpper)
		}
	}
	o := charts.NewLineChartOptionWithData(lines)
	o.Title.Text = fmt.Sprintf("%s, costs of %s: saved, %% of the certified bound, by capacity in %% of pages", t.Name, m.Name)
	o.Title.FontStyle.FontSize = 13
	o.Padding = charts.Box{Left: panelEdge, Right: panelRight, Top: panelEdge, Bottom: panelEdge}
	o.XAxis.Labels = labels
	o.YAxis = []charts.YAxisOption{{
		Min: charts.Ptr(0.), Max: charts.Ptr(100.), Unit: 20, LabelCount: 6,
		ValueFormatter: func(v float64) string { return fmt.Sprintf("%.0f", v) },
	}}
	o.Theme = charts.GetTheme(charts.ThemeLight).WithSeriesColors(lineColors())
	o.Legend = charts.LegendOption{
		SeriesNames: names, Vertical: charts.Ptr(true), Align: charts.AlignLeft,
		Offset: charts.OffsetStr{Left: fmt.Sprint(panelWidth - panelRight + panelEdge), Top: fmt.Sprint(panelTop)},
	}
	return o
}

// lineColors are for up to thirteen lines that can be told apart; then they begin again.
func lineColors() (colors []charts.Color) {
	for _, hex := range []string{
		"#000000", "#1f77b4", "#aec7e8", "#ff7f0e", "#2ca02c", "#98df8a", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f", "#17becf", "#bcbd22",
	} {
		colors = append(colors, charts.ColorFromHex(hex))
	}
	return colors
}
