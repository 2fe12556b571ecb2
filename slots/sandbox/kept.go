package sandbox

import (
	"context"

	"berth/slots/holder"
)

// kept is a process that lives on between executions, with what descends from
// it: it is their subreaper, and sweeps spare them.
type kept struct {
	in      *instance
	process *holder.Process

	ended chan struct{} // closed after exit and err are set
	exit  holder.Exit
	err   error
}

// keep starts one. The caller has wait run.
func (i *instance) keep(r holder.Request) (*kept, error) {
	r.Keep, r.Confine = true, append(r.Confine, holder.ConfineSubreaper)
	p, err := i.holder.Start(r)
	if err != nil {
		return nil, err
	}
	return &kept{in: i, process: p, ended: make(chan struct{})}, nil
}

// wait ends with the process or with its holder, and then calls after.
func (k *kept) wait(after func()) {
	k.exit, k.err = k.process.Wait(context.Background())
	close(k.ended)
	after()
}

func (k *kept) hasEnded() bool {
	select {
	case <-k.ended:
		return true
	default:
		return false
	}
}

// kill ends the process with everything below it, or else the holder.
func (k *kept) kill(ctx context.Context) {
	k.killBy(ctx, func(kill context.Context) {
		k.process.SweepAlso(kill) //nolint:errcheck // a holder that has ended took it along
	})
}

// killBy has sweep end the process, or else ends the holder.
func (k *kept) killBy(ctx context.Context, sweep func(kill context.Context)) {
	if k.hasEnded() {
		return
	}
	kill, cancel := context.WithTimeout(context.WithoutCancel(ctx), killDeadline)
	defer cancel()
	sweep(kill)
	select {
	case <-k.ended:
	case <-kill.Done():
		k.in.holder.Kill()
	}
}
