// Package probe finds out what this machine allows by doing it: which kernel
// facilities work, and which of a short list of attacks from one slot on its
// neighbour and on the agent succeed.
package probe
