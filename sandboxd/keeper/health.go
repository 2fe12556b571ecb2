package keeper

import (
	"time"

	"berth/sandboxd/api"
	"berth/slots"
)

// Health counts the slots. It waits for nothing that a slot does.
func (k *Keeper) Health() api.Health {
	h := api.Health{
		Status: api.HealthOK, Slots: len(k.slots), DataDir: k.cfg.DataDir,
		Isolation: k.cfg.Isolation, Version: k.cfg.Version, UptimeS: time.Since(k.started).Seconds(),
	}
	starting := 0
	for _, s := range k.slots {
		view := s.view()
		h.Queued += view.Queued
		if view.Lease != nil {
			h.Leased++
		}
		switch view.State {
		case slots.StateAvailable:
			h.Available++
		case slots.StateExecuting:
			h.Executing++
		case slots.StateQuarantined:
			h.Quarantined++
		case slots.StateStarting:
			starting++
		case slots.StateResetting, slots.StateDraining, slots.StateClosed:
		}
	}
	switch {
	case k.draining.Load():
		h.Status = "draining"
		if by := k.deadline.Load(); by != nil {
			h.DrainDeadline = *by
		}
	case starting > 0:
		h.Status = "starting"
	case h.Quarantined == h.Slots:
		h.Status = "quarantined"
	}
	return h
}

// Slots lists the slots in the order of their numbers.
func (k *Keeper) Slots() []api.Slot {
	list := make([]api.Slot, len(k.slots))
	for i, s := range k.slots {
		list[i] = s.view()
	}
	return list
}

// view is the slot as others see it.
func (s *slot) view() api.Slot {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := api.Slot{
		SlotID: s.id, State: s.state, WorkspaceDir: s.k.cfg.WorkspaceDir(s.id),
		Generation: s.record.Generation, Queued: len(s.queue), Reason: s.reason,
	}
	if s.running != nil {
		id := s.running.exec.ID()
		v.CurrentExecutionID = &id
	}
	if l := s.record.Tenancy.Lease; l != nil {
		held := *l
		v.Lease = &held
	}
	if s.reset != nil && s.state == slots.StateAvailable {
		v.State = slots.StateResetting
	}
	return v
}
