package main

import "testing"

func TestEvictionText(t *testing.T) {
	modes := []modeView{{"lru", 0, 50}, {"strict", 1, 10}, {"value", 3, 70}}
	for want, e := range map[string]*evictionView{
		"": nil,
		"saves 80 % of what can be, +60 % against LRU   shards by mode: strict in 1, value in 3": {200, 100, 80, modes},
		"saves 40 % of what can be, -20 % against LRU   shards by mode: strict in 1, value in 3": {200, 100, 40, modes},
		"saves 0 % of what can be   shards by mode: value in 4":                                  {200, 100, 0, []modeView{{"lru", 0, 0}, {"value", 4, 0}}},
	} {
		if got := e.text(); got != want {
			t.Errorf("%+v: %q, want %q", e, got, want)
		}
	}
	if got := (&evictionView{Used: 5, Modes: modes}).text(); got != "" {
		t.Errorf("nothing came back yet: %q", got)
	}
}

func TestScoreText(t *testing.T) {
	for want, v := range map[string]explainView{
		"0.25":                              {Score: 0.25},
		"0.25 FLOP per byte-second in host": {Score: 0.25, ScoreUnit: "FLOP per byte-second", ScoreTier: "host"},
		"0.25 FLOP per byte-second in host, more than 60 % of 5 others that may go": {Score: 0.25, ScoreUnit: "FLOP per byte-second", ScoreTier: "host", Below: 3, Ranked: 5},
	} {
		if got := v.scoreText(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
