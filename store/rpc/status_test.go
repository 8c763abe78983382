package rpc_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/quire-kv/quire/namespace"
	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/core"
	"github.com/quire-kv/quire/store/rpc"
)

func TestReasonsEqualProto(t *testing.T) {
	if got, want := len(quirev1.Reason_name), len(reason.All())+1; got != want {
		t.Fatalf("proto has %d reasons, package reason %d", got, want)
	}
	for _, r := range reason.All() {
		want := "REASON_" + strings.ToUpper(r.String())
		if got := quirev1.Reason_name[int32(r)]; got != want {
			t.Errorf("reason %d: proto %s, want %s", r, got, want)
		}
		if got := rpc.FromProto(rpc.ToProto(r)); got != r {
			t.Errorf("reason %v comes back as %v", r, got)
		}
	}
	for _, n := range []quirev1.Reason{-1, quirev1.Reason(len(quirev1.Reason_name)), 1 << 30} {
		if got := rpc.FromProto(n); got != reason.Unknown {
			t.Errorf("unknown number %d reads as %v", n, got)
		}
	}
}

func TestOutcomesEqualProto(t *testing.T) {
	want := map[core.Outcome]string{
		core.OK: "OUTCOME_OK", core.Granted: "OUTCOME_GRANTED", core.Present: "OUTCOME_PRESENT",
		core.Committed: "OUTCOME_COMMITTED", core.Miss: "OUTCOME_MISS", core.Refused: "OUTCOME_REFUSED",
	}
	if len(quirev1.Outcome_name) != len(want)+1 {
		t.Fatalf("proto has %d outcomes, core %d", len(quirev1.Outcome_name)-1, len(want))
	}
	for o, name := range want {
		if got := quirev1.Outcome_name[int32(o)]; got != name {
			t.Errorf("outcome %d: proto %s, want %s", o, got, name)
		}
		if got := rpc.OutcomeFromProto(rpc.OutcomeToProto(o)); got != o {
			t.Errorf("outcome %d comes back as %d", o, got)
		}
	}
	for _, n := range []quirev1.Outcome{-1, 0, 99} {
		if got := rpc.OutcomeFromProto(n); got != core.Refused {
			t.Errorf("unknown outcome %d reads as %d, want refused", n, got)
		}
	}
}

// Every reason survives the wire with all that rides along, and is found by errors.Is; no two are confused.
func TestErrorRoundTrip(t *testing.T) {
	for _, r := range reason.All() {
		if rpc.CodeOf(r) == codes.OK || rpc.CodeOf(r) == codes.Unknown {
			t.Errorf("%v travels under %v", r, rpc.CodeOf(r))
		}
		sent := rpc.Errorf(r, "what of %d", 7)
		sent.Path, sent.RetryAfter = "groups[0].bits", 250*time.Millisecond
		for _, c := range []namespace.Class{namespace.Semantic, namespace.Representation, namespace.Provenance, namespace.Recorded} {
			sent.Differences = append(sent.Differences, namespace.Difference{Path: fmt.Sprint(c), A: "x", Class: c})
		}
		err := rpc.FromStatus(status.ErrorProto(sent.GRPCStatus().Proto()))
		var got *rpc.Error
		if !errors.As(err, &got) {
			t.Fatalf("%v: %T", r, err)
		}
		if got.Code != rpc.CodeOf(r) || got.Text != sent.Text || got.Path != sent.Path || got.RetryAfter != sent.RetryAfter ||
			fmt.Sprint(got.Differences) != fmt.Sprint(sent.Differences) {
			t.Errorf("%v: got %+v", r, got)
		}
		for _, other := range reason.All() {
			if errors.Is(err, other) != (other == r) {
				t.Errorf("errors.Is(%v, %v) = %v", r, other, other != r)
			}
		}
	}
}

func TestRefused(t *testing.T) {
	diff := []namespace.Difference{{Path: "hash.seed", A: "1", B: "2", Class: namespace.Semantic}}
	for name, c := range map[string]struct {
		err    error
		code   codes.Code
		reason reason.Reason
		kind   error
	}{
		"reason":   {fmt.Errorf("open: %w", reason.Held), codes.Aborted, reason.Held, reason.Held},
		"refusal":  {&namespace.Refusal{Reason: reason.HashContractFork, Siblings: []namespace.Sibling{{Diff: diff}}}, codes.FailedPrecondition, reason.HashContractFork, reason.HashContractFork},
		"deadline": {context.DeadlineExceeded, codes.DeadlineExceeded, reason.Unknown, context.DeadlineExceeded},
		"canceled": {context.Canceled, codes.Canceled, reason.Unknown, context.Canceled},
		"registry": {namespace.ErrOutcomeUnknown, codes.Unavailable, reason.Unknown, reason.Unknown},
		"foreign":  {errors.New("open /secret/path: permission denied"), codes.Internal, reason.Unknown, reason.Unknown},
	} {
		err := rpc.Refused(c.err)
		var e *rpc.Error
		if !errors.As(err, &e) || e.Code != c.code || e.Reason != c.reason || !errors.Is(err, c.kind) {
			t.Errorf("%s: %#v", name, err)
			continue
		}
		if strings.Contains(e.Text, "secret") {
			t.Errorf("%s: text of a foreign error leaks: %q", name, e.Text)
		}
		if c.reason == reason.HashContractFork && len(e.Differences) != 1 {
			t.Errorf("%s: no diff", name)
		}
	}
	if rpc.Refused(nil) != nil || rpc.FromStatus(nil) != nil {
		t.Error("nil does not stay nil")
	}
}

// Statuses that gRPC itself makes carry no detail.
func TestFromStatusBare(t *testing.T) {
	for code, want := range map[codes.Code]reason.Reason{
		codes.Unavailable: reason.Unknown, codes.Unauthenticated: reason.Unauthorized, codes.PermissionDenied: reason.Unauthorized,
		codes.Unimplemented: reason.Unsupported, codes.ResourceExhausted: reason.LimitExceeded, codes.Internal: reason.Unknown,
		codes.NotFound: reason.Unknown, codes.DeadlineExceeded: reason.Unknown,
	} {
		err := rpc.FromStatus(status.Error(code, "x"))
		var e *rpc.Error
		if !errors.As(err, &e) || e.Reason != want || e.Code != code {
			t.Errorf("%v: %#v", code, err)
		}
	}
	if err := rpc.FromStatus(status.Error(codes.DeadlineExceeded, "x")); !errors.Is(err, context.DeadlineExceeded) {
		t.Error("a deadline of the wire is not context.DeadlineExceeded")
	}
	if err := rpc.FromStatus(context.Canceled); !errors.Is(err, context.Canceled) {
		t.Error("a local cancellation is lost")
	}
	if err := rpc.FromStatus(errors.New("EOF")); !errors.Is(err, reason.Unknown) {
		t.Error("a broken stream is not unknown")
	}
}
