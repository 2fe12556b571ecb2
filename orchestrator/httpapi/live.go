package httpapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"berth/orchestrator/pool"
	"berth/orchestrator/poolapi"
	"berth/orchestrator/recent"
	"berth/slots"
)

// liveEvent is one event of GET /v1/events. One named "full" is how all
// stands; one named "change" has what is new since the event before it: every
// container that is not as it was, and what else is not absent.
type liveEvent struct {
	At         time.Time         `json:"at"`
	Pools      []poolapi.Pool    `json:"pools"`
	Containers []json.RawMessage `json:"containers"`        // each a liveContainer
	Gone       []string          `json:"gone,omitempty"`    // containers that are no more
	Seconds    []liveSecond      `json:"seconds"`           // whole ones, the oldest first
	Slowest    []liveCall        `json:"slowest,omitempty"` // absent: as before, or none
	Dispatch   liveDispatch      `json:"dispatch"`
}

// liveContainer is one container as the dashboard shows it.
type liveContainer struct {
	ID        string              `json:"id"`
	Template  string              `json:"template"`
	State     pool.ContainerState `json:"state"`
	Failure   string              `json:"failure,omitempty"`
	StartedAt time.Time           `json:"started_at"`
	Deadline  time.Time           `json:"deadline,omitzero"` // of its drain
	Slots     []liveSlot          `json:"slots"`
}

// liveSlot is one slot as the dashboard shows it.
type liveSlot struct {
	SlotID     string         `json:"slot_id"`
	State      slots.State    `json:"state"`
	Generation uint64         `json:"generation"`
	Running    int            `json:"running,omitempty"`    // calls under way by way of this orchestrator
	Lease      string         `json:"lease,omitempty"`      // "": nobody has it
	Trajectory string         `json:"trajectory,omitempty"` // whose the lease is
	AcquiredAt *time.Time     `json:"acquired_at,omitempty"`
	Releasing  bool           `json:"releasing,omitempty"`
	Reason     string         `json:"reason,omitempty"`  // why it is quarantined
	Receipt    *slots.Receipt `json:"receipt,omitempty"` // of the last reset, when it is quarantined
}

// liveSecond is what calls came to in one second.
type liveSecond struct {
	Unix   int64   `json:"unix"`
	Calls  int     `json:"calls"`
	Faults int     `json:"faults"` // of them those that could not be carried out
	P50MS  float64 `json:"p50_ms"`
	P99MS  float64 `json:"p99_ms"`
}

// liveCall is one of the slowest calls.
type liveCall struct {
	EndedAt    time.Time     `json:"ended_at"`
	Trajectory string        `json:"trajectory,omitempty"`
	Lease      string        `json:"lease,omitempty"` // "": it never had a slot
	Tool       string        `json:"tool"`
	TookMS     float64       `json:"took_ms"`
	TimingMS   timing        `json:"timing_ms"`
	Outcome    slots.Outcome `json:"outcome,omitempty"`
	ErrorKind  slots.Kind    `json:"error_kind,omitempty"`
}

// liveDispatch is what all dispatchers have to do now.
type liveDispatch struct {
	Sent    int `json:"sent"`    // calls without an answer
	Waiting int `json:"waiting"` // calls that wait to be sent
}

// scene makes the events of one stretch of watching. It is used by one
// goroutine.
type scene struct {
	s       *Server
	rows    map[string]json.RawMessage // containers as they were told last
	order   []string                   // of the containers
	slowest []byte
	second  time.Time // up to which seconds were told
	now     liveEvent // all but what is told by change only
}

// look makes the event of what has changed since the last look.
func (v *scene) look(now time.Time) (liveEvent, error) {
	e := liveEvent{At: now, Pools: v.s.poolAnswers(), Containers: []json.RawMessage{}}
	running := v.s.Recent.Running()
	there := map[string]bool{}
	v.order = v.order[:0]
	for _, c := range v.s.Pools.Containers() {
		id := c.Container.ID
		row, err := json.Marshal(newLiveContainer(c, running))
		if err != nil {
			return e, slots.Errorf(slots.KindInternal, "encode container: %w", err)
		}
		there[id] = true
		v.order = append(v.order, id)
		if !bytes.Equal(row, v.rows[id]) {
			v.rows[id] = row
			e.Containers = append(e.Containers, row)
		}
	}
	for id := range v.rows {
		if !there[id] {
			delete(v.rows, id)
			e.Gone = append(e.Gone, id)
		}
	}
	e.Seconds = newLiveSeconds(v.s.Recent.Seconds(v.second, now))
	v.second = now.Add(-time.Second)
	for _, d := range v.s.Calls.Stats() {
		e.Dispatch.Sent += d.Sent
		e.Dispatch.Waiting += d.Waiting + d.Outside
	}
	v.now = e
	v.now.Slowest = v.s.slowest(now)
	text, err := json.Marshal(v.now.Slowest)
	if err != nil {
		return e, slots.Errorf(slots.KindInternal, "encode slowest calls: %w", err)
	}
	if !bytes.Equal(text, v.slowest) {
		v.slowest, e.Slowest = text, v.now.Slowest
	}
	return e, nil
}

// full makes the event of how all stood at the last look.
func (v *scene) full() liveEvent {
	e := v.now
	e.Gone, e.Containers = nil, make([]json.RawMessage, len(v.order))
	for i, id := range v.order {
		e.Containers[i] = v.rows[id]
	}
	e.Seconds = newLiveSeconds(v.s.Recent.Seconds(time.Time{}, e.At))
	return e
}

// encodeEvent is the event as it travels. JSON holds no raw newline, so nothing in it
// can end the event.
func encodeEvent(name string, e liveEvent) ([]byte, error) {
	text, err := json.Marshal(e)
	if err != nil {
		return nil, slots.Errorf(slots.KindInternal, "encode event: %w", err)
	}
	return fmt.Appendf(nil, "event: %s\ndata: %s\n\n", name, text), nil
}

func newLiveContainer(v pool.ContainerView, running map[pool.Ref]int) liveContainer {
	a := liveContainer{
		ID: v.Container.ID, Template: v.Container.Template, State: v.State, Failure: v.Failure,
		StartedAt: v.Container.Started, Deadline: v.Container.Deadline, Slots: make([]liveSlot, len(v.Slots)),
	}
	for i, s := range v.Slots {
		one := liveSlot{SlotID: s.SlotID, State: s.State, Generation: s.Generation, Releasing: s.Releasing, Reason: s.Reason}
		if s.State == slots.StateQuarantined {
			one.Receipt = s.Receipt
		}
		if l := s.Lease; l != nil {
			ref := pool.Ref{Container: v.Container.ID, SlotID: s.SlotID, Token: l.Token}
			one.Lease, one.Trajectory, one.AcquiredAt, one.Running = ref.String(), l.Trajectory, &l.AcquiredAt, running[ref]
		}
		a.Slots[i] = one
	}
	return a
}

func newLiveSeconds(all []recent.Second) []liveSecond {
	out := make([]liveSecond, len(all))
	for i, s := range all {
		out[i] = liveSecond{Unix: s.Unix, Calls: s.Calls, Faults: s.Faults, P50MS: milliseconds(s.P50), P99MS: milliseconds(s.P99)}
	}
	return out
}

func (s *Server) slowest(now time.Time) []liveCall {
	calls := s.Recent.Slowest(now)
	out := make([]liveCall, len(calls))
	for i, c := range calls {
		t := c.Timing
		out[i] = liveCall{
			EndedAt: c.Ended, Trajectory: c.Trajectory, Tool: c.Tool, TookMS: milliseconds(c.Took()), Outcome: c.Outcome, ErrorKind: c.Fault,
			TimingMS: timing{
				Queue: milliseconds(t.Queue), Acquire: milliseconds(c.Acquire), Dispatch: milliseconds(t.Dispatch),
				Spawn: milliseconds(t.Spawn), Run: milliseconds(t.Run), Transfer: milliseconds(t.Transfer),
			},
		}
		if c.Lease != (pool.Ref{}) {
			out[i].Lease = c.Lease.String()
			if c.Trajectory == "" {
				out[i].Trajectory = s.Pools.Trajectory(c.Lease)
			}
		}
	}
	return slices.Clip(out)
}
