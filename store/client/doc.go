// Package client is what Go programs import to use a Quire store: it opens sessions on namespaces, batches, spreads,
// retries what is safe, and verifies every byte after the last copy. A page is either exactly what was asked for or a
// miss with a reason.
//
//	c, err := client.Dial(ctx, client.Options{Address: "127.0.0.1:7420"})
//	s, err := c.Open(ctx, spec)
//	p, err := s.Exists(ctx, run, 10*time.Second)      // which pages are there; lease them in the same call
//	res, err := s.FetchInto(ctx, s.First(run, p.Leading), page.View{}, nil, dst, p.Lease)
//	p.Lease.Release(ctx)
//	res, err = s.Publish(ctx, rest, page.View{}, nil, items, client.PublishOptions{})
//
// Errors and results. A PageResult is one page's outcome and reason. An error is of the whole call: bad arguments
// (before any byte moves), a refusal by the server, a broken transport, a deadline. Results are aligned with the
// request also next to an error: what had been served by then is OK. Kinds are told apart by errors.Is(err, reason.X);
// *rpc.Error has the differing factors of an identity refusal.
package client
