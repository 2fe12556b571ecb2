package backend

// Duty says whose part it is to start and stop the containers of a template.
type Duty struct {
	Held   bool     // it is this orchestrator's
	Shared bool     // others may serve the containers as well, and have it later
	Holder string   // who has it, by the name that it goes by; "" where it is not shared, or nobody is known to
	Demand []Demand // of each of the others at which callers wait, as far as is known here

	// Trouble is why containers do not start just now, in the words of whatever
	// is to start them, whoever asked for them; "": nothing is known of it.
	Trouble string
}

// Demand is how many callers wait for a slot of a template at an orchestrator
// that does not scale it.
type Demand struct {
	Waiting    int
	Containers int // so many it knew, whose slots those who wait have not got
}
