package frame

import (
	"context"
	"time"
)

// Deadlines of contexts and of sockets are instants of the system's clock.

// timeLeft is what a request says of its context's deadline: milliseconds, 0 for none.
func timeLeft(ctx context.Context) (ms uint32, err error) {
	d, ok := ctx.Deadline()
	if !ok {
		return 0, nil
	}
	left := time.Until(d)
	if left <= 0 {
		return 0, context.DeadlineExceeded
	}
	return uint32(max(1, min(left.Milliseconds(), 1<<31))), nil
}

// ended is why a context is over, also in the moment between its deadline and the end that comes of it; nil: it is not.
func ended(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	_, err := timeLeft(ctx)
	return err
}

// writeDeadline is when a write that begins now has waited long enough.
func writeDeadline() time.Time { return time.Now().Add(writeTimeout) }
