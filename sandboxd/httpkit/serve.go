package httpkit

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"
)

// lastWords is how long answers have to go out, and streams to send their
// final event, when a stop takes longer than Stop.Within.
const lastWords = time.Second

// Stop is how Serve ends.
type Stop struct {
	Begin  func()        // called when it begins; nil: nothing is to be done
	Within time.Duration // how long requests that are under way may take
	Cause  error         // ends the contexts of those that take longer
}

// Serve answers requests on ln, which it closes, until ctx ends. Then it takes
// no more, calls stop.Begin, gives those under way stop.Within, ends their
// contexts with stop.Cause, lets them say so, and returns nil. It sets the
// server's BaseContext.
func Serve(ctx context.Context, server *http.Server, ln net.Listener, stop Stop) error {
	requests, cut := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cut(nil)
	server.BaseContext = func(net.Listener) context.Context { return requests }
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ln) }() // waited for below
	select {
	case err := <-ended:
		return fmt.Errorf("serve http: %w", err)
	case <-ctx.Done():
	}
	if stop.Begin != nil {
		stop.Begin()
	}
	stopping := context.WithoutCancel(ctx)
	if shutdown(stopping, server, stop.Within) != nil {
		cut(stop.Cause)
		if shutdown(stopping, server, lastWords) != nil {
			_ = server.Close() // what is still open then ends with the process
		}
	}
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve http: %w", err)
	}
	return nil
}

func shutdown(ctx context.Context, server *http.Server, within time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	return server.Shutdown(ctx)
}
