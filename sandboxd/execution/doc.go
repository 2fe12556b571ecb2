// Package execution runs every execution_id at most once. A duplicate joins
// the execution that is under way or gets its stored result; the same id with
// other content is refused. Results are kept for a time and within a number
// of bytes, in memory and in a journal, so that after a crash of the agent a
// finished execution is still answered and one that had started is reported
// as interrupted instead of being run again.
//
// The package starts no process. Disk is touched by the journal alone, and
// time is time.Now, so that everything else runs under testing/synctest.
package execution
