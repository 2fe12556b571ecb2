// Package httpkit is what the two HTTP servers of the project have in common:
// how they read bodies, paths and offsets, which form of an answer a client
// wants, errors whose status is not that of their kind, and how they stop. It
// knows net/http only; how requests are routed is for its two users.
package httpkit
