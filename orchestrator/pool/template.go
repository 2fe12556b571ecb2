package pool

import (
	"fmt"
	"maps"
	"strings"
	"time"

	"berth/orchestrator/autoscale"
	"berth/orchestrator/backend"
	"berth/slots"
)

// Template is what a pool's containers are made of and how many there may be.
type Template struct {
	Name          string
	Slots         int // of each container
	MinContainers int
	MaxContainers int // 0: containers are only found, never started, drained or stopped by the pool itself

	Isolation  string            // least isolation to accept; "": sandboxd's default
	Env        map[string]string // environment of the slots
	Network    bool              // whether slots may use the network
	MaxTimeout time.Duration     // longest timeout that a call may name; 0: sandboxd's default
	Limits     backend.Limits    // of each slot

	TTL            time.Duration // of a lease that names none; default 5 minutes
	FreeMargin     int           // slots that should be free for those who come next
	IdleAfter      time.Duration // how long a container is empty before it may be drained; default 5 minutes
	GrowCooldown   time.Duration // between two starts for the margin; default 5 s
	ShrinkCooldown time.Duration // between a start or drain and the next drain; default 1 minute
}

// maxTemplateBytes leaves room for what makes a container's ID of the name.
const maxTemplateBytes = 40

// Check refuses, with slots.KindBadRequest, a template that makes no pool.
func (t Template) Check() error {
	if t.Name == "" || len(t.Name) > maxTemplateBytes {
		return t.bad("name: want 1 to %d bytes, got %d", maxTemplateBytes, len(t.Name))
	}
	if t.MinContainers < 0 || t.MaxContainers < 0 {
		return t.bad("containers: want 0 or more, got min %d and max %d", t.MinContainers, t.MaxContainers)
	}
	if t.MinContainers > t.MaxContainers {
		return t.bad("containers: min %d is above max %d", t.MinContainers, t.MaxContainers)
	}
	if t.FreeMargin < 0 {
		return t.bad("free margin: want 0 or more slots, got %d", t.FreeMargin)
	}
	for name, d := range map[string]time.Duration{
		"idle after": t.IdleAfter, "grow cooldown": t.GrowCooldown, "shrink cooldown": t.ShrinkCooldown,
	} {
		if d < 0 {
			return t.bad("%s: want 0 or more, got %v", name, d)
		}
	}
	if t.TTL != 0 && (t.TTL < MinTTL || t.TTL > MaxTTL) {
		return t.bad("ttl: want %v to %v, got %v", MinTTL, MaxTTL, t.TTL)
	}
	if err := t.Spec(t.Name + "-0").Check(); err != nil {
		return t.bad("%w", err)
	}
	return nil
}

func (t Template) bad(format string, args ...any) error {
	return slots.Errorf(slots.KindBadRequest, "template %q: %w", t.Name, fmt.Errorf(format, args...))
}

// withDefaults fills in what is zero.
func (t Template) withDefaults() Template {
	t.Env = maps.Clone(t.Env)
	t.TTL = orDefault(t.TTL, 5*time.Minute)
	t.IdleAfter = orDefault(t.IdleAfter, 5*time.Minute)
	t.GrowCooldown = orDefault(t.GrowCooldown, 5*time.Second)
	t.ShrinkCooldown = orDefault(t.ShrinkCooldown, time.Minute)
	return t
}

// Spec is one container of the template.
func (t Template) Spec(id string) backend.Spec {
	return backend.Spec{
		ID: id, Template: t.Name, Slots: t.Slots, Isolation: t.Isolation, Env: maps.Clone(t.Env),
		Network: t.Network, MaxTimeout: t.MaxTimeout, Limits: t.Limits,
	}
}

func (t Template) policy() autoscale.Policy {
	return autoscale.Policy{
		Min: t.MinContainers, Max: t.MaxContainers, Slots: t.Slots, Margin: t.FreeMargin,
		IdleAfter: t.IdleAfter, GrowCooldown: t.GrowCooldown, ShrinkCooldown: t.ShrinkCooldown,
	}
}

// checkLabels refuses labels that no container takes and those that this
// package gives itself.
func checkLabels(labels map[string]string) error {
	if n := slots.MaxLabels - ownLabels; len(labels) > n {
		return slots.Errorf(slots.KindBadRequest, "a lease has at most %d labels, got %d", n, len(labels))
	}
	for name, value := range labels {
		if len(name) > slots.MaxLabelBytes || len(value) > slots.MaxLabelBytes {
			return slots.Errorf(slots.KindBadRequest, "a label and its value have at most %d bytes each", slots.MaxLabelBytes)
		}
		if strings.HasPrefix(name, ownPrefix) {
			return slots.Errorf(slots.KindBadRequest, "labels that begin with %s are taken: %.80q", ownPrefix, name)
		}
	}
	return nil
}
