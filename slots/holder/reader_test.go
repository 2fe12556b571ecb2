package holder

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// exited answers a request for a process with an end of that status.
func exited(c *blockingConn, id uint64, status uint32) {
	c.say(kindExited, id, encode(exitReport{Status: status << 8}))
}

func TestAnswersReachWhoeverWaitsWhoeverReads(t *testing.T) {
	const n = 50
	var asked []frame
	h := newHostile(t, func(c *blockingConn, f frame) {
		if asked = append(asked, f); len(asked) < n {
			return
		}
		for _, f := range slices.Backward(asked) { // the first reader's comes last
			request, _ := decode[spawnRequest](f.body)
			status, _ := strconv.Atoi(request.Argv[0])
			exited(c, f.id, uint32(status))
		}
		asked = nil
	})
	for range 3 {
		var waiting sync.WaitGroup
		for i := range n {
			waiting.Go(func() {
				p, err := h.Start(Request{Argv: []string{strconv.Itoa(i)}})
				var exit Exit
				if err == nil {
					exit, err = p.Wait(t.Context())
				}
				assert.Equal(t, []any{nil, i}, []any{err, exit.Status.ExitStatus()})
			})
		}
		waiting.Wait()
	}
}

func TestAReaderThatGivesUpLeavesTheOthersTheirAnswers(t *testing.T) {
	release := make(chan struct{})
	h := newHostile(t, func(c *blockingConn, f frame) {
		request, _ := decode[spawnRequest](f.body)
		switch request.Argv[0] {
		case "never":
		case "late":
			go func() { <-release; exited(c, f.id, 7) }()
		default:
			exited(c, f.id, 0)
		}
	})
	start := func(what string) *Process {
		p, err := h.Start(Request{Argv: []string{what}})
		require.NoError(t, err)
		return p
	}
	patience, giveUp := context.WithCancelCause(t.Context())
	gaveUp := make(chan error, 1)
	never, late := start("never"), start("late")
	go func() {
		_, err := never.Wait(patience)
		gaveUp <- err
	}()
	require.Eventually(t, func() bool { return len(h.turn) == 1 }, 30*time.Second, time.Millisecond, "the first one reads")
	exits := make(chan Exit, 1)
	go func() {
		exit, err := late.Wait(t.Context())
		assert.NoError(t, err)
		exits <- exit
	}()
	cause := errors.New("no patience")
	giveUp(cause)
	assert.Equal(t, cause, <-gaveUp)
	close(release)
	assert.Equal(t, 7, (<-exits).Status.ExitStatus())

	for range 100 { // the deadline that ended the read is not left behind
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		p := start("never")
		_, err := p.Wait(ctx)
		require.ErrorIs(t, err, context.Canceled)
		p.Abandon()
		exit, err := start("at once").Wait(t.Context())
		require.NoError(t, err)
		require.Zero(t, exit.Status.ExitStatus())
	}
}

func TestTheEndOfAHolderThatNobodyWaitsForIsKnown(t *testing.T) {
	h := newHostile(t, func(*blockingConn, frame) {})
	h.Kill()
	h.conn.Close()
	select {
	case <-h.Done():
	case <-time.After(10 * time.Second):
		t.Fatal("nobody noticed")
	}
}
