package bench

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"berth/sandboxd/api"
	"berth/slots"
)

// The protocols that a server under load may speak.
const (
	ProtocolAuto         = "auto"         // found out by asking
	ProtocolSlots        = "slots"        // a container's: calls name a slot_id
	ProtocolTrajectories = "trajectories" // a pool's: calls name a trajectory_id
)

// Load says what to send to which server.
type Load struct {
	URL      string
	Token    string // "" sends none
	Protocol string
	Command  string        // of bash
	Workers  int           // executions at once
	Calls    int           // executions in all
	Timeout  time.Duration // of one
	Progress io.Writer     // is told what happens; nil: nobody
}

// Report is what the server did under load. Times are milliseconds, from the
// request to its answer as a client sees them.
type Report struct {
	URL          string  `json:"url"`
	Protocol     string  `json:"protocol"`
	Command      string  `json:"command"`
	Workers      int     `json:"workers"`
	Calls        int     `json:"calls"`
	Failed       int     `json:"failed"`
	FirstFailure string  `json:"first_failure,omitempty"`
	PerSecond    float64 `json:"per_second"`
	P50MS        float64 `json:"p50_ms"`
	P90MS        float64 `json:"p90_ms"`
	P99MS        float64 `json:"p99_ms"`
	SlowestMS    float64 `json:"slowest_ms"`
	// FirstP50MS is of each worker's first call, which on a pool acquires its
	// slot.
	FirstP50MS float64 `json:"first_p50_ms"`
	// The floor is a plain fork and exec of "bash -c true" here, by as many
	// workers, with both output streams captured. It is never Command, which is
	// for slots and not for this machine.
	FloorPerSecond float64 `json:"floor_per_second"`
	FloorP50MS     float64 `json:"floor_p50_ms"`
	FloorP99MS     float64 `json:"floor_p99_ms"`
	OfFloor        float64 `json:"of_floor"` // PerSecond / FloorPerSecond
}

// target is one server under load.
type target struct {
	Load
	http  *http.Client
	slots []string // of a container
	run   string   // part of every name of this run
}

// loadRounds is in how many parts the calls are sent, the floor in turns with
// them, so that a machine that is slow for a while is slow for both.
const loadRounds = 4

// Measure puts the server under load. A call that fails is counted; the error
// says that there is no server to measure.
func Measure(ctx context.Context, load Load) (Report, error) {
	if load.Progress == nil {
		load.Progress = io.Discard
	}
	t := &target{Load: load, run: rand.Text()[:10], http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: load.Workers}}}
	defer t.http.CloseIdleConnections()
	if err := t.choose(ctx); err != nil {
		return Report{}, err
	}
	fmt.Fprintf(load.Progress, "%d executions of %q by %d workers on %s, protocol of %s\n", load.Calls, load.Command, t.Workers, load.URL, t.Protocol)
	if err := t.clear(ctx); err != nil {
		return Report{}, err
	}
	ours, bare := &tally{}, &tally{}
	first := t.first(ctx)
	for round := range loadRounds {
		n := t.Calls * (round + 1) / loadRounds
		n -= t.Calls * round / loadRounds
		t.burst(ctx, n, ours, t.execute)
		t.burst(ctx, max(n/4, t.Workers), bare, func(ctx context.Context, _ int) error { return floorWithOutput(ctx) })
	}
	if ctx.Err() != nil {
		return Report{}, errors.Join(context.Cause(ctx), t.clear(context.WithoutCancel(ctx)))
	}
	report := Report{
		URL: t.URL, Protocol: t.Protocol, Command: t.Command, Workers: t.Workers, Calls: t.Calls,
		Failed: ours.failed + first.failed, FirstFailure: cmp.Or(first.failure, ours.failure),
		PerSecond: ours.rate(), P50MS: milliseconds(median(ours.took)), P90MS: milliseconds(percentile(ours.took, 0.9)),
		P99MS: milliseconds(percentile(ours.took, 0.99)), SlowestMS: milliseconds(percentile(ours.took, 1)),
		FirstP50MS:     milliseconds(median(first.took)),
		FloorPerSecond: bare.rate(), FloorP50MS: milliseconds(median(bare.took)), FloorP99MS: milliseconds(percentile(bare.took, 0.99)),
	}
	if report.FloorPerSecond > 0 {
		report.OfFloor = report.PerSecond / report.FloorPerSecond
	}
	return report, t.clear(ctx)
}

// tally is what came of many runs.
type tally struct {
	mu      sync.Mutex      // guards what time fills in
	took    []time.Duration // of those that succeeded
	failed  int
	failure string // of the first that failed
	lasted  time.Duration
}

// time runs do and notes how long it took.
func (t *tally) time(do func() error) {
	start := time.Now()
	err := do()
	took := time.Since(start)
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil {
		t.failed++
		t.failure = cmp.Or(t.failure, err.Error())
		return
	}
	t.took = append(t.took, took)
}

func (t *tally) rate() float64 {
	if t.lasted <= 0 {
		return 0
	}
	return float64(len(t.took)) / t.lasted.Seconds()
}

// burst runs do n times by the workers.
func (t *target) burst(ctx context.Context, n int, into *tally, do func(ctx context.Context, worker int) error) {
	var next atomic.Int64
	var workers sync.WaitGroup
	begun := time.Now()
	for worker := range t.Workers {
		workers.Go(func() {
			for next.Add(1) <= int64(n) && ctx.Err() == nil {
				into.time(func() error { return do(ctx, worker) })
			}
		})
	}
	workers.Wait()
	into.lasted += time.Since(begun)
}

// first runs the command once for every worker.
func (t *target) first(ctx context.Context) *tally {
	into := &tally{}
	var workers sync.WaitGroup
	for worker := range t.Workers {
		workers.Go(func() { into.time(func() error { return t.execute(ctx, worker) }) })
	}
	workers.Wait()
	return into
}

// choose finds out which protocol the server speaks, and its slots.
func (t *target) choose(ctx context.Context) error {
	if t.Protocol != ProtocolTrajectories {
		var list api.Slots
		code, err := t.send(ctx, http.MethodGet, "/slots", nil, &list)
		if err != nil {
			return err
		}
		for _, s := range list.Slots {
			t.slots = append(t.slots, s.SlotID)
		}
		switch {
		case code == http.StatusUnauthorized || code == http.StatusForbidden:
			return slots.Errorf(slots.KindUnauthorized, "the server at %s does not take the token", t.URL)
		case code == http.StatusOK && len(t.slots) > 0:
			t.Protocol = ProtocolSlots
			t.Workers = min(t.Workers, len(t.slots)) // one slot runs one at a time
			return nil
		case t.Protocol == ProtocolSlots:
			return fmt.Errorf("the server at %s has no slots: GET /slots answered %d", t.URL, code)
		}
	}
	code, err := t.send(ctx, http.MethodGet, "/status", nil, nil)
	switch {
	case err != nil:
		return err
	case code == http.StatusUnauthorized || code == http.StatusForbidden:
		return slots.Errorf(slots.KindUnauthorized, "the server at %s does not take the token", t.URL)
	case code != http.StatusOK:
		return fmt.Errorf("the server at %s speaks neither protocol: GET /status answered %d", t.URL, code)
	}
	t.Protocol = ProtocolTrajectories
	return nil
}

// clear resets the slots, or releases the trajectories, of all workers.
func (t *target) clear(ctx context.Context) error {
	for worker := range t.Workers {
		path, body := "/release", map[string]any{"trajectory_id": t.trajectory(worker), "reset_workspace": true}
		if t.Protocol == ProtocolSlots {
			path, body = "/reset", map[string]any{"slot_id": t.slots[worker]}
		}
		if _, err := t.send(ctx, http.MethodPost, path, body, nil); err != nil {
			return err
		}
	}
	return nil
}

func (t *target) trajectory(worker int) string { return "bench-" + t.run + "-" + strconv.Itoa(worker) }

// execute runs the command once for the worker.
func (t *target) execute(ctx context.Context, worker int) error {
	args, id := map[string]any{"command": t.Command}, rand.Text()
	body := map[string]any{
		"trajectory_id": t.trajectory(worker), "timeout_s": t.Timeout.Seconds(),
		"tool": map[string]any{"name": "terminal", "arguments": args, "uniq_id": id},
	}
	if t.Protocol == ProtocolSlots {
		body = map[string]any{
			"slot_id": t.slots[worker], "tool": "bash", "args": args, "execution_id": id, "timeout": t.Timeout.Seconds(),
		}
	}
	// Of the five keys both protocols have these two.
	var answer struct {
		Success bool
		Error   string
	}
	code, err := t.send(ctx, http.MethodPost, "/execute", body, &answer)
	switch {
	case err != nil:
		return err
	case code != http.StatusOK:
		return fmt.Errorf("answer %d: %.200s", code, answer.Error)
	case !answer.Success:
		return fmt.Errorf("execution failed: %.200s", answer.Error)
	}
	return nil
}

// send sends one request and decodes the answer into v if it is JSON. A server
// that does not answer is slots.KindContainerUnreachable, with the cause.
func (t *target) send(ctx context.Context, method, path string, body, v any) (code int, err error) {
	var text []byte
	if body != nil {
		if text, err = json.Marshal(body); err != nil {
			return 0, fmt.Errorf("encode request: %w", err)
		}
	}
	// Longer than the execution may take by as much as an acquire waits.
	ctx, cancel := context.WithTimeout(ctx, 2*t.Timeout+time.Minute)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, t.URL+path, bytes.NewReader(text))
	if err != nil {
		return 0, fmt.Errorf("make request: %w", err)
	}
	r.Header.Set("Content-Type", "application/json")
	if t.Token != "" {
		r.Header.Set("Authorization", "Bearer "+t.Token)
	}
	answer, err := t.http.Do(r)
	if err != nil {
		return 0, slots.Errorf(slots.KindContainerUnreachable, "call server: %w", err)
	}
	defer answer.Body.Close()
	got, err := io.ReadAll(answer.Body)
	if err != nil {
		return 0, slots.Errorf(slots.KindContainerUnreachable, "read answer: %w", err)
	}
	if v != nil && json.Unmarshal(got, v) != nil && answer.StatusCode == http.StatusOK {
		return 0, fmt.Errorf("%s %s: the answer is not that of the protocol", method, path)
	}
	return answer.StatusCode, nil
}

// Write writes the report as a table, in one piece: a tabwriter writes cell by
// cell, and into a log that others share their lines would come between.
func (r Report) Write(out io.Writer) error {
	var text bytes.Buffer
	w := tabwriter.NewWriter(&text, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "\tper second\tp50\tp90\tp99\tslowest\t\n")
	fmt.Fprintf(w, "%d at once\t%.0f\t%.2f ms\t%.2f ms\t%.2f ms\t%.2f ms\t\n", r.Workers, r.PerSecond, r.P50MS, r.P90MS, r.P99MS, r.SlowestMS)
	fmt.Fprintf(w, "fork and exec here\t%.0f\t%.2f ms\t\t%.2f ms\t\t\n", r.FloorPerSecond, r.FloorP50MS, r.FloorP99MS)
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(&text, "\n%.2f × the rate of fork and exec; first calls p50 %.2f ms; %d of %d failed\n", r.OfFloor, r.FirstP50MS, r.Failed, r.Calls)
	_, err := out.Write(text.Bytes())
	return err
}
