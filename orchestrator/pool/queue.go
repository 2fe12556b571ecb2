package pool

import (
	"container/list"
	"iter"
	"slices"
	"time"

	"berth/slots"
)

// waiter is one acquire, with all callers that wait for it.
type waiter struct {
	want    Request
	number  uint64 // of its place; smaller is earlier
	since   time.Time
	until   time.Time     // when the wait ends
	callers int           // 0: nobody wants it any more
	queued  *list.Element // nil: not in the queue
	bound   *time.Timer   // ends the wait; nil before the first queueing
	done    chan struct{} // closed when lease or err is there
	lease   Lease
	err     error
}

func (w *waiter) over() bool {
	select {
	case <-w.done:
		return true
	default:
		return false
	}
}

// queue holds the waiters in the order in which they came. The pool's mutex
// guards it.
type queue struct {
	order list.List
	last  uint64
}

func (q *queue) len() int { return q.order.Len() }

// number gives the next place.
func (q *queue) number() uint64 {
	q.last++
	return q.last
}

// add puts the waiter at its place, which is before all who came later.
func (q *queue) add(w *waiter) {
	for e := q.order.Back(); e != nil; e = e.Prev() {
		if at(e).number < w.number {
			w.queued = q.order.InsertAfter(w, e)
			return
		}
	}
	w.queued = q.order.PushFront(w)
}

// remove takes the waiter out; it is in.
func (q *queue) remove(w *waiter) {
	q.order.Remove(w.queued)
	w.queued = nil
}

// first is the next to be served; nil when nobody waits.
func (q *queue) first() *waiter {
	if e := q.order.Front(); e != nil {
		return at(e)
	}
	return nil
}

// ahead counts those who came before.
func (q *queue) ahead(w *waiter) int {
	n := 0
	for e := q.order.Front(); e != nil && at(e).number < w.number; e = e.Next() {
		n++
	}
	return n
}

// all yields the waiters; the one that was yielded may be removed.
func (q *queue) all() iter.Seq[*waiter] {
	return func(yield func(*waiter) bool) {
		for e := q.order.Front(); e != nil; {
			next := e.Next()
			if !yield(at(e)) {
				return
			}
			e = next
		}
	}
}

func at(e *list.Element) *waiter {
	return e.Value.(*waiter) // the queue holds nothing else
}

// exhaustedLocked is the refusal of a waiter whose wait is over.
func (p *pool) exhaustedLocked(w *waiter, now time.Time) error {
	ahead, length := p.queue.ahead(w), p.queue.len()
	if w.queued == nil {
		length++
	}
	p.refused++
	p.owner.rescale()
	return slots.Errorf(slots.KindPoolExhausted, "%w", &QueueError{
		Template: p.template.Name, Place: ahead + 1, Length: length, Waited: now.Sub(w.since), Why: p.whyLocked(now),
	})
}

// waits counts how long acquires took, and remembers the last ones.
type waits struct {
	count  uint64
	recent [256]time.Duration
}

func (w *waits) add(d time.Duration) {
	w.recent[w.count%uint64(len(w.recent))] = d
	w.count++
}

// quantiles are of the recent waits; zeros when there were none.
func (w *waits) quantiles() (p50, p99, longest time.Duration) {
	n := int(min(w.count, uint64(len(w.recent)))) //nolint:gosec // at most the length of an array
	if n == 0 {
		return 0, 0, 0
	}
	sorted := slices.Sorted(slices.Values(w.recent[:n]))
	return sorted[(n-1)/2], sorted[(n-1)*99/100], sorted[n-1]
}
