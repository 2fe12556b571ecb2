//go:build !amd64

package main

// machineCalls are of this architecture only.
var machineCalls = map[string]uintptr{}

// foreign has no other gate to try here.
func foreign(*targets) error { return errNothing }

func foreignCall(string) error { return errNothing }
