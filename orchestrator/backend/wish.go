package backend

import "time"

// Wish is what operators want of a container.
type Wish struct {
	Cordoned bool      `json:"cordoned,omitempty"` // it gets no new leases
	Drained  bool      `json:"drained,omitempty"`  // it gets none, and is stopped when it has none left
	Replaced bool      `json:"replaced,omitempty"` // and another one is started in its place at once
	By       time.Time `json:"by,omitzero"`        // when it is stopped also if it has some; the zero time: never
}
