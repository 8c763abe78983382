package client

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
)

// Report is how an engine fares with the session's namespace. It is for operators ('quire ns list') and changes nothing.
type Report struct {
	Engine, Adapter string        // names with versions, at most 64 bytes of printable text each; the provenance's engine wins
	Uptime          time.Duration // since the counters began at 0
	Counters        *quirev1.EngineCounters
	Breaker         quirev1.BreakerState
}

// Report tells the server of r under Options.Instance and answers when to report again. Counters are totals, so one that
// is lost costs nothing: errors need no handling. The server forgets it with the session.
func (s *Session) Report(ctx context.Context, r Report) (again time.Duration, err error) {
	ctx, leave, err := s.enter(ctx)
	if err != nil {
		return 0, err
	}
	defer leave()
	got, err := once(ctx, s.c, func(ctx context.Context, p quirev1.PageServiceClient) (*quirev1.ReportResponse, error) {
		return p.Report(ctx, &quirev1.ReportRequest{
			Namespace: s.ref, SessionId: s.sessionID(), Instance: s.c.opt.Instance, Engine: r.Engine, Adapter: r.Adapter,
			Counters: r.Counters, Breaker: r.Breaker, Uptime: durationpb.New(r.Uptime),
		})
	})
	if err != nil {
		return 0, s.why(err)
	}
	return got.GetInterval().AsDuration(), nil
}
