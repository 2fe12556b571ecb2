// Package api holds what travels between a container and its callers: the
// types of every request and answer of sandboxd, and the texts that existing
// clients match on. It imports slots and the standard library only.
package api
