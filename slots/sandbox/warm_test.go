package sandbox

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestWhatWaitsInVainEndsInItsTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		i := &instance{}
		s := &Sandbox{host: &Host{config: Config{JobIdle: time.Hour}}, current: i}
		give := func() { s.giveWarm("primed k", &warm{primed: &primed{in: i, out: [3]int{-1, -1, -1}, job: -1}}) }
		waiting := func() int {
			synctest.Wait()
			s.mu.Lock()
			defer s.mu.Unlock()
			return len(s.warm["primed k"].waiting)
		}
		take := func() bool { return s.takePrimed(i, "k") != nil }

		assert.False(t, take())
		give()
		give()
		assert.Equal(t, 1, waiting(), "nothing is in a hurry yet")
		for n := range 10 { // each takes one, and finds what is missing
			assert.True(t, take())
			for range 10 {
				give()
			}
			assert.Equal(t, min(n+2, primedMost), waiting())
		}
		time.Sleep(crowdIdle + time.Second)
		assert.Equal(t, 1, waiting())
		assert.True(t, take())
		give()
		give()
		assert.Equal(t, 1, waiting(), "jobs come slowly")
		time.Sleep(time.Hour - time.Second)
		assert.Equal(t, 1, waiting())
		time.Sleep(2 * time.Second)
		assert.Zero(t, waiting())
		assert.False(t, take())

		for _, key := range []string{"1", "2", "3", "4"} { // the first line is the one that was not used for longest
			time.Sleep(time.Second)
			s.giveWarm(key, &warm{primed: &primed{in: i, out: [3]int{-1, -1, -1}, job: -1}})
		}
		assert.Len(t, s.warm, warmMost)
		assert.NotContains(t, s.warm, "primed k")
		give()
		assert.NotContains(t, s.warm, "1")
		s.mu.Lock()
		all := s.coolLocked()
		s.mu.Unlock()
		assert.Len(t, all, warmMost)
		endWarm(all)
		s.current = nil
		give()
		assert.Empty(t, s.warm, "what is of an earlier instance does not wait")
	})
}
