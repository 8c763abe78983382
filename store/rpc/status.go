package rpc

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quire-kv/quire/namespace"
	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/core"
)

// The one error map. A refused call is, on its way out and back again:
//
//	reason.X, *namespace.Refusal ──Refused──> *Error ──GRPCStatus──> google.rpc.Status
//	                                            ^                        { code, text,
//	errors.Is(err, reason.X) <── *Error <──FromStatus──────────────────    quire.v1.ErrorDetail }
//
// Code and reason are the contract; text is for people.

// codeOf is the google.rpc code of each reason, indexed by reason.
var codeOf = [...]codes.Code{
	reason.None:             codes.Internal,
	reason.Absent:           codes.NotFound,
	reason.Incomplete:       codes.NotFound,
	reason.Provenance:       codes.FailedPrecondition,
	reason.Corrupt:          codes.DataLoss,
	reason.Expired:          codes.NotFound,
	reason.Retired:          codes.FailedPrecondition,
	reason.Draining:         codes.FailedPrecondition,
	reason.StaleEpoch:       codes.FailedPrecondition,
	reason.StaleToken:       codes.FailedPrecondition,
	reason.LeaseExpired:     codes.FailedPrecondition,
	reason.Held:             codes.Aborted,
	reason.ParentMissing:    codes.FailedPrecondition,
	reason.ParentConflict:   codes.FailedPrecondition,
	reason.NotWorth:         codes.FailedPrecondition,
	reason.Busy:             codes.ResourceExhausted,
	reason.QuotaExceeded:    codes.ResourceExhausted,
	reason.SizeMismatch:     codes.InvalidArgument,
	reason.BufferSize:       codes.InvalidArgument,
	reason.Truncated:        codes.InvalidArgument,
	reason.HashContractFork: codes.FailedPrecondition,
	reason.Unauthorized:     codes.PermissionDenied,
	reason.Unknown:          codes.Unavailable,
	reason.InvalidView:      codes.InvalidArgument,
	reason.InvalidSpec:      codes.InvalidArgument,
	reason.Unsupported:      codes.Unimplemented,
	reason.LimitExceeded:    codes.OutOfRange,
	reason.LostRace:         codes.Aborted,
	reason.Aborted:          codes.Aborted,
	reason.WeakNames:        codes.FailedPrecondition,
	reason.NotFound:         codes.NotFound,
}

// CodeOf is the google.rpc code that a reason travels under.
func CodeOf(r reason.Reason) codes.Code {
	if int(r) < len(codeOf) {
		return codeOf[r]
	}
	return codes.Internal
}

// reasonOf is what a status without our detail means: gRPC itself made it, or something between.
func reasonOf(c codes.Code) reason.Reason {
	switch c {
	case codes.Unauthenticated, codes.PermissionDenied:
		return reason.Unauthorized
	case codes.Unimplemented:
		return reason.Unsupported
	case codes.ResourceExhausted, codes.OutOfRange: // gRPC: message larger than allowed
		return reason.LimitExceeded
	}
	return reason.Unknown
}

// ToProto is the wire's number of a reason.
func ToProto(r reason.Reason) quirev1.Reason { return quirev1.Reason(r) }

// FromProto reads a reason off the wire; a number that this build does not know is Unknown.
func FromProto(r quirev1.Reason) reason.Reason {
	if r < 0 || int(r) >= len(codeOf) {
		return reason.Unknown
	}
	return reason.Reason(r)
}

// OutcomeToProto is the wire's number of an outcome.
func OutcomeToProto(o core.Outcome) quirev1.Outcome { return quirev1.Outcome(o) }

// OutcomeFromProto reads an outcome off the wire; a number that this build does not know is Refused, so that
// nothing is taken for served.
func OutcomeFromProto(o quirev1.Outcome) core.Outcome {
	if o <= quirev1.Outcome_OUTCOME_UNSPECIFIED || o > quirev1.Outcome_OUTCOME_REFUSED {
		return core.Refused
	}
	return core.Outcome(o)
}

// Error is a refused call. Immutable once made. errors.Is(err, reason.X) tells kinds apart; deadline and
// cancellation are errors.Is their context errors too.
type Error struct {
	Code        codes.Code
	Reason      reason.Reason
	Text        string                 // one line for people; never branch on it
	Path        string                 // the field that is wrong, where one is
	Differences []namespace.Difference // identity refusals: from the nearest sibling
	RetryAfter  time.Duration          // 0: no advice
}

// Errorf makes an Error under the code of r.
func Errorf(r reason.Reason, format string, a ...any) *Error {
	return &Error{Code: CodeOf(r), Reason: r, Text: fmt.Sprintf(format, a...)}
}

// Error is "reason: text (path)".
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Reason.String())
	if e.Text != "" {
		b.WriteString(": " + e.Text)
	}
	if e.Path != "" {
		b.WriteString(" (" + e.Path + ")")
	}
	return b.String()
}

// Unwrap lets errors.Is find the reason and, where the call ran out of time, the context's error.
func (e *Error) Unwrap() []error {
	kinds := make([]error, 0, 2)
	if e.Reason != reason.None {
		kinds = append(kinds, e.Reason)
	}
	switch e.Code {
	case codes.DeadlineExceeded:
		kinds = append(kinds, context.DeadlineExceeded)
	case codes.Canceled:
		kinds = append(kinds, context.Canceled)
	}
	return kinds
}

// GRPCStatus is how gRPC sends a returned *Error.
func (e *Error) GRPCStatus() *status.Status {
	bare := status.New(e.Code, e.Text)
	d := &quirev1.ErrorDetail{Reason: ToProto(e.Reason), Path: e.Path, Differences: DifferencesToProto(e.Differences)}
	if e.RetryAfter > 0 {
		d.RetryAfter = durationpb.New(e.RetryAfter)
	}
	if s, err := bare.WithDetails(d); err == nil {
		return s
	}
	return bare
}

// Refused maps what namespace and store answer to an *Error. Errors that are none of ours become Internal without
// their text: it may speak of another tenant's data or of the machine. nil stays nil.
func Refused(err error) error {
	if err == nil {
		return nil
	}
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	var refusal *namespace.Refusal
	if errors.As(err, &refusal) {
		return fromRefusal(refusal)
	}
	var r reason.Reason
	switch {
	case errors.As(err, &r):
		return &Error{Code: CodeOf(r), Reason: r}
	case errors.Is(err, context.DeadlineExceeded):
		return &Error{Code: codes.DeadlineExceeded, Reason: reason.Unknown, Text: "deadline exceeded"}
	case errors.Is(err, context.Canceled):
		return &Error{Code: codes.Canceled, Reason: reason.Unknown, Text: "canceled"}
	case errors.Is(err, namespace.ErrOutcomeUnknown), errors.Is(err, namespace.ErrClosed), errors.Is(err, namespace.ErrConflict):
		return &Error{Code: codes.Unavailable, Reason: reason.Unknown, Text: "the registry did not answer; ask again"}
	}
	return &Error{Code: codes.Internal, Reason: reason.Unknown, Text: "internal error"}
}

func fromRefusal(r *namespace.Refusal) *Error {
	diff := r.Diff
	if len(diff) == 0 && len(r.Siblings) > 0 {
		diff = r.Siblings[0].Diff
	}
	return &Error{Code: CodeOf(r.Reason), Reason: r.Reason, Text: r.Text, Path: r.Path, Differences: diff}
}

// FromStatus turns what a call returned into an *Error: with the sender's detail where there is one, else by the
// code alone. nil stays nil.
func FromStatus(err error) error {
	if err == nil {
		return nil
	}
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return Refused(err)
	}
	s, ok := status.FromError(err)
	if !ok {
		return &Error{Code: codes.Unavailable, Reason: reason.Unknown, Text: err.Error()}
	}
	e = &Error{Code: s.Code(), Reason: reasonOf(s.Code()), Text: s.Message()}
	for _, d := range s.Details() {
		if d, ok := d.(*quirev1.ErrorDetail); ok {
			e.Reason, e.Path, e.Differences = FromProto(d.GetReason()), d.GetPath(), DifferencesFromProto(d.GetDifferences())
			e.RetryAfter = d.GetRetryAfter().AsDuration()
			break
		}
	}
	return e
}

// classNames are the wire's names of factor classes.
var classNames = [...]string{
	namespace.Semantic: "semantic", namespace.Representation: "representation",
	namespace.Provenance: "provenance", namespace.Recorded: "recorded",
}

// DifferencesToProto is a diff on the wire.
func DifferencesToProto(diff []namespace.Difference) []*quirev1.Difference {
	if len(diff) == 0 {
		return nil
	}
	out := make([]*quirev1.Difference, len(diff))
	for i, d := range diff {
		out[i] = &quirev1.Difference{Path: d.Path, A: d.A, B: d.B}
		if int(d.Class) < len(classNames) {
			out[i].Class = classNames[d.Class]
		}
	}
	return out
}

// DifferencesFromProto reads a diff off the wire; a class that this build does not know is 0.
func DifferencesFromProto(diff []*quirev1.Difference) []namespace.Difference {
	if len(diff) == 0 {
		return nil
	}
	out := make([]namespace.Difference, len(diff))
	for i, d := range diff {
		out[i] = namespace.Difference{Path: d.GetPath(), A: d.GetA(), B: d.GetB()}
		for class, name := range classNames {
			if name != "" && name == d.GetClass() {
				out[i].Class = namespace.Class(class)
			}
		}
	}
	return out
}
