package holder

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"
)

// The connection has no reader of its own: of those who wait for an answer one
// reads it, for all of them, until its own has come. An answer then wakes the
// goroutine that needs it, and no other one first.

// await waits for an answer. The error is ErrGone or the context's.
func (h *Holder) await(ctx context.Context, answer chan frame) (frame, error) {
	for {
		select {
		case f := <-answer:
			return f, nil
		default:
		}
		select {
		case h.turn <- struct{}{}:
			h.readUntil(ctx, answer)
			<-h.turn
			if len(answer) > 0 {
				continue
			}
			if ctx.Err() != nil {
				return frame{}, context.Cause(ctx)
			}
		case f := <-answer:
			return f, nil
		case <-h.done:
			select {
			case f := <-answer: // it answered and then ended
				return f, nil
			default:
				return frame{}, fmt.Errorf("holder: %w", ErrGone)
			}
		case <-ctx.Done():
			return frame{}, context.Cause(ctx)
		}
	}
}

// watch takes a turn once the spawner says that the holder has ended, so that
// its end is known to those too who do not wait for an answer.
func (h *Holder) watch() {
	<-h.gone
	h.turn <- struct{}{}
	h.readUntil(context.Background(), nil)
	<-h.turn
}

// readUntil routes what the holder sends until answer has something, ctx ends,
// or the holder ends or breaks the protocol or the connection, which ends it.
// It is called by who has the turn.
func (h *Holder) readUntil(ctx context.Context, answer <-chan frame) {
	select {
	case <-h.done:
		return
	default:
	}
	if ctx.Done() != nil {
		interrupted := make(chan struct{})
		stop := context.AfterFunc(ctx, func() {
			defer close(interrupted)
			_ = h.conn.unix.SetReadDeadline(time.Unix(1, 0)) // a closed connection needs none
		})
		defer func() {
			if stop() {
				return
			}
			<-interrupted
			_ = h.conn.unix.SetReadDeadline(time.Time{})
		}()
	}
	for len(answer) == 0 {
		f, err := h.conn.receive()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
		if err != nil {
			if errors.Is(err, errFrame) {
				h.Kill()
			}
			h.kill() // it may have let go of its end, and live
			close(h.done)
			return
		}
		h.route(f)
	}
}

// route hands a frame to whoever waits for its id. What nobody waits for, or
// comes more often than it may, is dropped.
func (h *Holder) route(f frame) {
	if h.deliver(f) {
		return
	}
	// Not under the lock: what a hostile holder passes may take long to close.
	closeAll(f.files)
}

func (h *Holder) deliver(f frame) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	select {
	case h.pending[f.id] <- f: // a nil channel is never ready
		return true
	default:
		return false
	}
}

// register makes room for the answers to a request.
func (h *Holder) register(id uint64, room int) chan frame {
	ch := make(chan frame, room)
	h.mu.Lock()
	h.pending[id] = ch
	h.mu.Unlock()
	return ch
}

func (h *Holder) newID() uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.next++
	return h.next
}

// forget stops waiting and closes what has come unasked.
func (h *Holder) forget(id uint64) {
	h.mu.Lock()
	ch := h.pending[id]
	delete(h.pending, id)
	h.mu.Unlock()
	for {
		select {
		case f := <-ch:
			closeAll(f.files)
		default:
			return
		}
	}
}

// forgetAll closes what a holder that has ended had passed to those who do not
// wait any more.
func (h *Holder) forgetAll() {
	h.mu.Lock()
	ids := slices.Collect(maps.Keys(h.pending))
	h.mu.Unlock()
	for _, id := range ids {
		h.forget(id)
	}
}
