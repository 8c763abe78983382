package modelspec

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/quire-kv/quire/namespace"
)

// vectors is testdata/identity_vectors.json, which the Python tests read too.
type vectors struct {
	Classes   map[string][]string
	Canonical []struct{ JSON, Hex string }
	Configs   []vector
}

type vector struct {
	Name                            string
	Config                          json.RawMessage
	Digest, Rope, Attention, Groups json.RawMessage
	Unclassed                       []string
	HeadWidth                       int `json:"head_width"` // of the shape; 0: not said
}

func readVectors(t *testing.T) vectors {
	t.Helper()
	data, err := os.ReadFile("testdata/identity_vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var v vectors
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatal(err)
	}
	if len(v.Canonical) == 0 || len(v.Configs) == 0 {
		t.Fatal("no vectors")
	}
	return v
}

func decoded(t *testing.T, text string) any {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

func TestCanonicalVectors(t *testing.T) {
	for _, v := range readVectors(t).Canonical {
		got, err := Canonical(decoded(t, v.JSON))
		if err != nil || hex.EncodeToString(got) != v.Hex {
			t.Errorf("%s: %q, %v; want %s", v.JSON, got, err, v.Hex)
		}
	}
	if _, err := Canonical(decoded(t, strings.Repeat("[", 40)+strings.Repeat("]", 40))); err == nil {
		t.Error("a value nested 40 deep was taken")
	}
}

func TestClassesAreThoseOfPython(t *testing.T) {
	for name, have := range map[string]map[string]bool{"ignored": ignored, "semantic": semantic, "positional": positional} {
		if want := readVectors(t).Classes[name]; !slices.Equal(slices.Sorted(maps.Keys(have)), want) {
			t.Errorf("%s: %v, want %v", name, slices.Sorted(maps.Keys(have)), want)
		}
	}
	for k := range semantic {
		if ignored[k] || positional[k] {
			t.Errorf("%s is in two classes", k)
		}
	}
}

// same compares JSON of got with want, which is {"refused":true} for an error.
func same(t *testing.T, where string, got any, err error, want json.RawMessage) {
	t.Helper()
	if err != nil {
		got = map[string]bool{"refused": true}
	}
	text, encodeErr := json.Marshal(got)
	if encodeErr != nil {
		t.Fatal(encodeErr)
	}
	if !reflect.DeepEqual(decoded(t, string(text)), decoded(t, string(want))) {
		t.Errorf("%s: %s (%v), want %s", where, text, err, want)
	}
}

// part is one part of a spec in its own JSON.
func part(t *testing.T, s namespace.Spec, key string) any {
	t.Helper()
	text, err := json.Marshal(&s)
	if err != nil {
		t.Fatal(err)
	}
	return decoded(t, string(text)).(map[string]any)[key]
}

func TestConfigVectors(t *testing.T) {
	for _, v := range readVectors(t).Configs {
		t.Run(v.Name, func(t *testing.T) {
			c, err := parseConfig(string(v.Config))
			if err != nil {
				t.Fatal(err)
			}
			d, err := c.digest("bfloat16")
			same(t, "digest", d.String(), err, v.Digest)
			r, err := c.rope()
			same(t, "rope", part(t, namespace.Spec{Rope: r}, "rope"), err, v.Rope)
			a, err := c.attention()
			a.MM = "" // the caller's
			same(t, "attention", part(t, namespace.Spec{Attention: a}, "attention"), err, v.Attention)
			g, err := c.groups(16, "bfloat16", 16)
			same(t, "groups", part(t, namespace.Spec{Groups: g}, "groups"), err, v.Groups)
			if got := c.unclassed(); !slices.Equal(got, v.Unclassed) && len(got)+len(v.Unclassed) > 0 {
				t.Errorf("unclassed %v, want %v", got, v.Unclassed)
			}
			if size, err := c.shape(); v.HeadWidth != 0 && (err != nil || size.width != v.HeadWidth) {
				t.Errorf("a head is %d wide (%v), want %d", size.width, err, v.HeadWidth)
			}
		})
	}
}

// engineParts is what a running engine adds to the part.
const engineParts = `
hash:
  algorithm: sha256_cbor
  seed: sha256:b13d17e1102110c940f1d8b9842ca48315c9c2841ca03b522e432fb6a893b6e5
  unit: 16
  bytes: 32
  probe: sha256:57cb3614c3016f5dc6f43dbcd4f1f5908f1adbfab8984f2531f64cc364604be8
provenance: {engine: vllm, engine_version: 0.32.0, runner: v1, attention_backend: cpu, kernel_build: k, device_arch: x86_64}
`

const someWeights = "sha256:fbb7a860a7c94df1b6a463db9a5a2c1182c40783a975df596b9395fa3a7929d8"

// opened is the namespace id of the part with the engine's parts added.
func opened(t *testing.T, f Facts) string {
	t.Helper()
	p, err := PartOf(f, 16)
	if err != nil {
		t.Fatal(err)
	}
	s, err := namespace.Parse([]byte(p.YAML() + engineParts))
	if err != nil {
		t.Fatalf("%v\n%s", err, p.YAML())
	}
	id := s.ID("default")
	return hex.EncodeToString(id[:])
}

func TestPartWithTheEnginesPartsIsASpec(t *testing.T) {
	n := 0
	for _, v := range readVectors(t).Configs {
		if bytes.Contains(append(append(append([]byte{}, v.Digest...), v.Rope...), append(v.Attention, v.Groups...)...), []byte("refused")) {
			_, err := PartOf(Facts{Model: "m", Weights: someWeights, Config: string(v.Config)}, 16)
			if err == nil {
				t.Errorf("%s: a part for what is refused", v.Name)
			}
			continue
		}
		opened(t, Facts{Model: "m: \"x\"", Weights: someWeights, Config: string(v.Config)})
		n++
	}
	if n < 10 {
		t.Errorf("only %d configurations make a part", n)
	}
}

func TestPartNeedsAConfiguration(t *testing.T) {
	if _, err := PartOf(Facts{Model: "m", Weights: someWeights}, 16); !errors.Is(err, ErrNoConfig) {
		t.Errorf("%v, want ErrNoConfig", err)
	}
	if _, err := PartOf(Facts{Model: "m", Weights: someWeights, Config: "[]"}, 16); err == nil {
		t.Error("a list was taken as a configuration")
	}
	if _, err := PartOf(Facts{Model: "m", Weights: "sha256:1", Config: "{}"}, 16); err == nil {
		t.Error("a broken digest was taken")
	}
}

// TestCase_C3_OtherRopeIsOtherIdentity: each change of position encoding is another namespace; a maximum length that no
// rule depends on is not.
func TestCase_C3_OtherRopeIsOtherIdentity(t *testing.T) {
	const plain = `{"model_type":"llama","hidden_size":512,"num_hidden_layers":4,"num_attention_heads":8,"vocab_size":1000,"max_position_embeddings":%s,"rope_theta":%s%s}`
	made := map[string]string{}
	for name, v := range map[string][3]string{
		"plain":          {"8192", "500000.0", ""},
		"theta":          {"8192", "10000.0", ""},
		"linear 2":       {"8192", "500000.0", `,"rope_scaling":{"type":"linear","factor":2.0}`},
		"linear 4":       {"8192", "500000.0", `,"rope_scaling":{"type":"linear","factor":4.0}`},
		"yarn":           {"8192", "500000.0", `,"rope_scaling":{"type":"yarn","factor":4.0}`},
		"yarn of 16384":  {"16384", "500000.0", `,"rope_scaling":{"type":"yarn","factor":4.0}`},
		"yarn truncated": {"8192", "500000.0", `,"rope_scaling":{"type":"yarn","factor":4.0,"truncate":true}`},
		"yarn not":       {"8192", "500000.0", `,"rope_scaling":{"type":"yarn","factor":4.0,"truncate":false}`},
		"half":           {"8192", "500000.0", `,"partial_rotary_factor":0.5`},
	} {
		id := opened(t, Facts{Model: "m", Weights: someWeights, Config: sprintf(plain, v)})
		for other, o := range made {
			if o == id {
				t.Errorf("%s and %s are one namespace", name, other)
			}
		}
		made[name] = id
	}
	longer := opened(t, Facts{Model: "m", Weights: someWeights, Config: sprintf(plain, [3]string{"131072", "500000.0", ""})})
	if longer != made["plain"] {
		t.Error("another maximum length is another namespace, and no rule depends on it")
	}
}

func sprintf(format string, v [3]string) string {
	for _, s := range v {
		format = strings.Replace(format, "%s", s, 1)
	}
	return format
}
