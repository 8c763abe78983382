package server

import (
	"encoding/binary"
	"errors"
	"time"

	"google.golang.org/grpc/codes"

	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store"
	"github.com/quire-kv/quire/store/core"
	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/rpc"
)

// busyRetryAfter is the advice that goes with a retryable refusal: leases and copies end within milliseconds to
// seconds.
const busyRetryAfter = 50 * time.Millisecond

// answer maps what a method of the store answered for the whole call to an error, or nil.
func answer(r reason.Reason, err error) error {
	switch {
	case errors.Is(err, store.ErrClosed):
		return &rpc.Error{Code: codes.Unavailable, Reason: reason.Unknown, Text: "the node is stopping"}
	case err != nil:
		return rpc.Refused(err)
	case r == reason.None:
		return nil
	}
	e := rpc.Errorf(r, "%s", callText[r])
	if r.Retryable() {
		e.RetryAfter = busyRetryAfter
	}
	return e
}

// callText is what a refusal of a whole call says to people.
var callText = map[reason.Reason]string{
	reason.Provenance:   "what this caller computes is not, or no longer, accepted in the namespace",
	reason.Retired:      "the namespace is retired; open it again",
	reason.Draining:     "the namespace takes no new publications",
	reason.StaleEpoch:   "the namespace has begun another life; open it again",
	reason.StaleToken:   "the fencing token is not, or no longer, live",
	reason.LeaseExpired: "the lease is over",
	reason.Busy:         "a bound is reached; try again",
	reason.InvalidView:  "the view is outside the page, or its packing cannot be cut so",
}

// extentIDBytes is the wire form: writer 16, sequence 8 little-endian, digest 16.
const extentIDBytes = 40

func appendExtentID(b []byte, id page.ExtentID) []byte {
	b = append(b, id.Writer[:]...)
	b = binary.LittleEndian.AppendUint64(b, id.Seq)
	return append(b, id.Digest[:]...)
}

func extentIDOf(b []byte) (page.ExtentID, error) {
	if len(b) != extentIDBytes {
		return page.ExtentID{}, badField("extent_ids", "%d bytes, want %d", len(b), extentIDBytes)
	}
	return page.ExtentID{Writer: [16]byte(b[:16]), Seq: binary.LittleEndian.Uint64(b[16:24]), Digest: [16]byte(b[24:])}, nil
}

func extentIDsOf(all [][]byte) ([]page.ExtentID, error) {
	ids := make([]page.ExtentID, len(all))
	for i, b := range all {
		var err error
		if ids[i], err = extentIDOf(b); err != nil {
			return nil, err
		}
	}
	return ids, nil
}

// pageStatus is one page's outcome on the wire.
func pageStatus(r *store.PageResult) *quirev1.PageStatus {
	s := &quirev1.PageStatus{Outcome: rpc.OutcomeToProto(r.Outcome), Reason: rpc.ToProto(r.Reason)}
	if len(r.Stored) > 0 {
		s.ExtentIds = make([][]byte, len(r.Stored))
		packed := make([]byte, 0, len(r.Stored)*extentIDBytes)
		for i, id := range r.Stored {
			packed = appendExtentID(packed, id)
			s.ExtentIds[i] = packed[i*extentIDBytes : len(packed) : len(packed)]
		}
	}
	if b := r.Ancestor.Bytes(); len(b) > 0 {
		s.FirstAbsentAncestor = b
	}
	for _, v := range r.Grants {
		s.Grants = append(s.Grants, viewToProto(v))
	}
	return s
}

func (n *node) pageStatuses(m *methodMetrics, results []store.PageResult) []*quirev1.PageStatus {
	out := make([]*quirev1.PageStatus, len(results))
	for i := range results {
		out[i] = pageStatus(&results[i])
		m.page(results[i].Outcome, results[i].Reason)
	}
	return out
}

// missing is n pages of a namespace that the caller cannot see, or that holds none of them: the two are equal.
func missing(n int) []*quirev1.PageStatus {
	out := make([]*quirev1.PageStatus, n)
	for i := range out {
		out[i] = missOf(reason.Absent)
	}
	return out
}

func missOf(r reason.Reason) *quirev1.PageStatus {
	return &quirev1.PageStatus{Outcome: quirev1.Outcome_OUTCOME_MISS, Reason: rpc.ToProto(r)}
}

func tokenOf(t *quirev1.FencingToken) (core.Token, error) {
	boot, err := bytes16("token.boot_id", t.GetBootId(), false)
	return core.Token{Boot: boot, Seq: t.GetSequence()}, err
}

func tokenToProto(t core.Token) *quirev1.FencingToken {
	if t == (core.Token{}) {
		return nil
	}
	return &quirev1.FencingToken{BootId: t.Boot[:], Sequence: t.Seq}
}

func leaseIDOf(b []byte) (core.LeaseID, error) {
	id, err := bytes16("lease_id", b, true)
	return core.LeaseID(id), err
}
