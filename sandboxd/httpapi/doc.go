// Package httpapi serves one container over HTTP: the routes that clients of
// the reference know, our own under /v1 and /slots, and metrics. It is the
// only package of the agent that knows echo, and it decides nothing about
// slots: it turns requests into calls of its collaborators and their errors
// into answers.
//
// Three manners of answering a failure live side by side, one per family of
// routes (see style): tool calls always answer 200 with success false,
// artifacts answer success false under the status of the error's kind, and
// our own routes answer an api.ErrorAnswer.
//
// Requests come from people who hold the token and from code in slots that
// does not. So nothing is read of a body before the token was seen, every
// read and write has a deadline that progress extends, and connections over
// the cap can still ask for /health. Nothing that a caller sent is logged.
package httpapi
