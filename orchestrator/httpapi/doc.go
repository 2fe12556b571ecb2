// Package httpapi serves the control plane over HTTP: the routes that rollout
// clients of the reference know, keyed by trajectory, and our own under /v1,
// keyed by lease. It is the only package of the control plane that knows echo,
// and it decides nothing about slots: it turns requests into calls of its
// collaborators and their errors into answers.
//
// Three manners of answering a failure live side by side, one per family of
// routes (see style): tool calls answer 200 with success false once they were
// understood, artifacts answer success false under the status of the error's
// kind, and all else answers an api.ErrorAnswer.
//
// Requests that are not the same when sent twice may bear an Idempotency-Key,
// see headerKey. GET /openapi.json describes all routes, see describe.
//
// The dashboard at / is a page of ours that follows GET /v1/events, see viewers.
// Nobody needs a token to load it; all that it shows asks for one.
//
// Nothing is read of a body before the token was seen, and every read and
// write has a deadline that progress extends. Nothing that a caller sent is
// logged.
package httpapi
