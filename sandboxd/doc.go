// Package sandboxd is the agent of one container, wired: it reads its
// configuration, listens, finds out what isolation the machine gives, opens
// its slots, serves them, and drains when it is told to stop. What it wires
// lives in the packages below it and in slots.
package sandboxd
