package container

import "strconv"

// Pool says which pool to start on this machine.
type Pool struct {
	Orchestrator string   // the orchestrator to run
	Agent        string   // the sandboxd of its containers
	Containers   int      // how many it runs
	Slots        int      // of each container
	Args         []string // more flags of "sandboxd serve"
}

// Config starts the pool: an orchestrator is started, and told to stop, as a
// container is, and its containers are below its data directory.
func (p Pool) Config() Config {
	args := []string{"--sandboxd", p.Agent, "--containers", strconv.Itoa(p.Containers)}
	for _, arg := range p.Args {
		args = append(args, "--sandboxd-arg", arg)
	}
	return Config{Binary: p.Orchestrator, Slots: p.Slots, Args: args}
}
