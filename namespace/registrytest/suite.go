// Package registrytest is the suite that every registry backend passes, and what breaks backends on purpose.
package registrytest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"testing"

	"github.com/quire-kv/quire/namespace"
)

// Backend is one under test. Reopen closes it and opens what it had stored; nil for one that stores nothing.
type Backend struct {
	namespace.Backend
	Reopen func(testing.TB) Backend
}

// Run runs the suite; fresh gives an empty backend for each test and cleans up after itself.
func Run(t *testing.T, fresh func(testing.TB) Backend) {
	for name, test := range map[string]func(*testing.T, Backend){
		"ReadsAPrefixInOrder":     readsAPrefixInOrder,
		"WritesIfUnchanged":       writesIfUnchanged,
		"ConflictsByPrefix":       conflictsByPrefix,
		"CopiesWhatItIsGiven":     copiesWhatItIsGiven,
		"RefusesWhatIsTooLarge":   refusesWhatIsTooLarge,
		"CountsUnderContention":   countsUnderContention,
		"WatchesInOrder":          watchesInOrder,
		"WatchEnds":               watchEnds,
		"WatchForgetsLoudly":      watchForgetsLoudly,
		"ClosesForGood":           closesForGood,
		"KeepsWhatItAcknowledged": keepsWhatItAcknowledged,
		"IsAMap":                  isAMap,
		"RegistryIsLinearizable":  func(t *testing.T, b Backend) { linearizable(t, b.Backend, 1) },
		"RegistriesShareABackend": func(t *testing.T, b Backend) { linearizable(t, b.Backend, 2) },
		"OutcomesMayBeUnknown":    func(t *testing.T, b Backend) { linearizable(t, Flaky(b.Backend, 1), 2) },
		"RegistrySurvivesReopen":  registrySurvivesReopen,
	} {
		t.Run(name, func(t *testing.T) { test(t, fresh(t)) })
	}
}

func background() context.Context { return context.Background() }

func put(key, value string) namespace.Record {
	return namespace.Record{Key: []byte(key), Value: []byte(value)}
}

func remove(key string) namespace.Record { return namespace.Record{Key: []byte(key)} }

// write writes without a condition.
func write(t testing.TB, b namespace.Backend, puts ...namespace.Record) namespace.Revision {
	t.Helper()
	_, at, err := b.Read(background(), nil)
	if err == nil {
		at, err = b.Write(background(), at, nil, puts)
	}
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// contents reads a prefix as "key=value@revision".
func contents(t testing.TB, b namespace.Backend, prefix string) (out []string) {
	t.Helper()
	records, at, err := b.Read(background(), []byte(prefix))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range records {
		if r.Revision > at || r.Revision < 1 {
			t.Errorf("%s has revision %d, read at %d", r.Key, r.Revision, at)
		}
		out = append(out, fmt.Sprintf("%s=%s@%d", r.Key, r.Value, r.Revision))
	}
	return out
}

func equal(t testing.TB, what string, got, want any) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

func wants(t testing.TB, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

func readsAPrefixInOrder(t *testing.T, b Backend) {
	equal(t, "an empty one", len(contents(t, b, "")), 0)
	write(t, b, put("b", "1"), put("a/2", "2"), put("a/1", "3"))
	write(t, b, put("a/\xff", "4"), put("a", ""))
	write(t, b, put("a/2", "5"), remove("b"), remove("nothing"))
	equal(t, "a/", contents(t, b, "a/"), []string{"a/1=3@1", "a/2=5@3", "a/\xff=4@2"})
	equal(t, "all", contents(t, b, ""), []string{"a=@2", "a/1=3@1", "a/2=5@3", "a/\xff=4@2"})
}

func writesIfUnchanged(t *testing.T, b Backend) {
	first := write(t, b, put("x", "1"))
	at, err := b.Write(background(), first, [][]byte{[]byte("x")}, []namespace.Record{put("x", "2")})
	if err != nil || at != first+1 {
		t.Fatalf("revision %d, %v", at, err)
	}
	_, err = b.Write(background(), first, [][]byte{[]byte("x")}, []namespace.Record{put("x", "3")})
	wants(t, "a stale write", err, namespace.ErrConflict)
	_, err = b.Write(background(), first, [][]byte{[]byte("x")}, nil)
	wants(t, "a stale check", err, namespace.ErrConflict)
	got, err := b.Write(background(), at, [][]byte{[]byte("x")}, nil)
	if err != nil || got != at {
		t.Errorf("a check of what is current: %d, %v", got, err)
	}
	gone := write(t, b, remove("x"))
	_, err = b.Write(background(), at, [][]byte{[]byte("x")}, []namespace.Record{put("x", "4")})
	wants(t, "a write on what was deleted", err, namespace.ErrConflict)
	if _, err = b.Write(background(), gone, [][]byte{[]byte("x")}, []namespace.Record{put("x", "5")}); err != nil {
		t.Errorf("create where nothing is: %v", err)
	}
	equal(t, "in the end", contents(t, b, ""), []string{"x=5@4"})
}

func conflictsByPrefix(t *testing.T, b Backend) {
	at := write(t, b, put("a/1", "1"), put("b/1", "1"))
	write(t, b, put("a/2", "new"))
	_, err := b.Write(background(), at, [][]byte{[]byte("b/"), []byte("a/")}, []namespace.Record{put("c", "1")})
	wants(t, "a phantom under a read prefix", err, namespace.ErrConflict)
	if _, err = b.Write(background(), at, [][]byte{[]byte("b/"), []byte("a/1")}, []namespace.Record{put("c", "2")}); err != nil {
		t.Errorf("a change beside the read prefixes: %v", err)
	}
	equal(t, "c", contents(t, b, "c"), []string{"c=2@3"})
}

func copiesWhatItIsGiven(t *testing.T, b Backend) {
	r := put("key", "value")
	write(t, b, r)
	copy(r.Key, "xxx")
	copy(r.Value, "xxxxx")
	equal(t, "after the caller reused its bytes", contents(t, b, ""), []string{"key=value@1"})
}

func refusesWhatIsTooLarge(t *testing.T, b Backend) {
	many := make([]namespace.Record, namespace.MaxPuts+1)
	for i := range many {
		many[i] = put(fmt.Sprint(i), "")
	}
	for what, puts := range map[string][]namespace.Record{
		"key":    {put(string(make([]byte, namespace.MaxKeyBytes+1)), "")},
		"no key": {put("", "x")},
		"value":  {{Key: []byte("x"), Value: make([]byte, namespace.MaxValueBytes+1)}},
		"change": many,
	} {
		_, err := b.Write(background(), 0, nil, puts)
		wants(t, what, err, namespace.ErrTooLarge)
	}
	equal(t, "nothing was applied", len(contents(t, b, "")), 0)
}

// countsUnderContention: increments by compare-and-set are never lost, and each revision has one writer.
func countsUnderContention(t *testing.T, b Backend) {
	const writers, each = 8, 20
	var wg sync.WaitGroup
	var mu sync.Mutex
	revisions := map[namespace.Revision]bool{}
	for range writers {
		wg.Go(func() {
			for done := 0; done < each; {
				records, at, err := b.Read(background(), []byte("n"))
				if err != nil {
					t.Error(err)
					return
				}
				next := put("n", "x")
				if len(records) > 0 {
					next.Value = append(bytes.Clone(records[0].Value), 'x')
				}
				at, err = b.Write(background(), at, [][]byte{[]byte("n")}, []namespace.Record{next})
				if errors.Is(err, namespace.ErrConflict) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				done++
				mu.Lock()
				if revisions[at] {
					t.Errorf("revision %d was given twice", at)
				}
				revisions[at] = true
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	records, _, err := b.Read(background(), []byte("n"))
	if err != nil || len(records) != 1 || len(records[0].Value) != writers*each {
		t.Errorf("%d records, %v: increments were lost", len(records), err)
	}
}
