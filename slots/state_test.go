package slots

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestEveryLegalTransitionIsListedAndAllOthersAreRefused(t *testing.T) {
	legal := map[[2]State]string{
		{"starting", "available"}:    "its sandbox stands",
		{"starting", "quarantined"}:  "its sandbox could not be made",
		{"starting", "draining"}:     "the agent ends while it starts",
		{"starting", "closed"}:       "the start was given up",
		{"available", "executing"}:   "a call comes",
		{"available", "resetting"}:   "its lease ended",
		{"available", "quarantined"}: "its holder died and none could be made",
		{"available", "draining"}:    "the agent ends",
		{"available", "closed"}:      "the agent ends at once",
		{"executing", "available"}:   "the call has ended",
		{"executing", "resetting"}:   "a reset cut the call short",
		{"executing", "quarantined"}: "a process could not be killed",
		{"executing", "draining"}:    "the agent ends and the call gets its time",
		{"executing", "closed"}:      "the agent ends at once",
		{"resetting", "available"}:   "the reset was proven",
		{"resetting", "quarantined"}: "it was not",
		{"resetting", "draining"}:    "the agent ends meanwhile",
		{"resetting", "closed"}:      "the agent ends at once",
		{"quarantined", "resetting"}: "somebody asks for another try",
		{"quarantined", "draining"}:  "the agent ends",
		{"quarantined", "closed"}:    "the agent ends at once",
		{"draining", "closed"}:       "what ran has ended",
	}
	for _, from := range States() {
		for _, to := range States() {
			_, want := legal[[2]State{from, to}]
			assert.Equal(t, want, from.CanBecome(to), "%s to %s", from, to)
			delete(legal, [2]State{from, to})
		}
	}
	assert.Empty(t, legal, "every word in the table is a state")
}

func TestUnknownStatesGoNowhere(t *testing.T) {
	for _, s := range append(States(), "", "Available", "busy") {
		assert.False(t, State("").CanBecome(s))
		assert.False(t, State("busy").CanBecome(s))
		assert.False(t, s.CanBecome("busy"))
		assert.False(t, s.CanBecome(""))
	}
}

func TestStatesHasEachStateOfTheTableOnce(t *testing.T) {
	seen := map[State]int{}
	for _, s := range States() {
		seen[s]++
		assert.Contains(t, transitions, s)
	}
	assert.Len(t, seen, len(transitions))
	assert.Len(t, States(), len(transitions))
}
