// Package process is a process as seen from outside: what became of its
// output. A Capture takes one stream of any length, keeps a bounded window of
// its head and tail in memory, puts the whole on disk when it outgrows the
// window, and lets any number of readers follow it live by offset. The
// package runs nothing and opens nothing itself.
package process
