// Package client is the Go client of one container. It speaks the protocol of
// sandboxd and returns every failure as a *slots.Error of the kind that the
// container named; a container that does not answer is
// slots.KindContainerUnreachable.
//
// A Client that makes its own connections writes and reads a short request on
// the goroutine of its caller (see direct); uploads and https go over net/http,
// and everything does when Config.HTTPClient is given.
//
// What is sent again after a broken connection:
//
//   - A call with an execution_id, because the container runs it at most once:
//     the second request joins the first one's execution or gets its result.
//   - Requests that change nothing.
//   - A stream goes on at the offset where it broke, also that of a call
//     without execution_id once the container has told which id it gave.
//
// Everything else is sent once. Its error then says by Executed whether it
// may have had an effect. A result that came is never asked for again, also
// not one that says Retryable: that is for the caller to decide.
package client
