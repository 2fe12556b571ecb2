package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"berth/orchestrator/calls"
	"berth/sandboxd/api"
	"berth/sandboxd/httpkit"
	"berth/slots"
)

// callRequest is the body of POST /execute.
type callRequest struct {
	TrajectoryID string `json:"trajectory_id"`
	Tool         struct {
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
		UniqID    *string         `json:"uniq_id"`
	} `json:"tool"`
	TimeoutS api.Timeout `json:"timeout_s"`
}

// execute answers POST /execute. What becomes of a call is always told with
// 200; other statuses are about the request.
func (s *Server) execute(c echo.Context) error {
	s.requests.Add(1)
	result, text, err := s.call(c)
	if err != nil || !result.Success {
		s.failures.Add(1)
	}
	if err != nil {
		return err
	}
	s.send(c, http.StatusOK, text)
	return nil
}

// call carries a call out. It returns the result, and the answer that tells
// it.
func (s *Server) call(c echo.Context) (api.Result, []byte, error) {
	var req callRequest
	err := s.readLoose(c, &req)
	if err == nil {
		err = checkTrajectory(req.TrajectoryID)
	}
	if err == nil && req.Tool.Name == "" {
		err = slots.Errorf(slots.KindBadRequest, "tool.name is missing")
	}
	if err != nil {
		return api.Result{}, nil, err
	}
	call, err := req.call()
	if err != nil {
		result := api.Refused("", err)
		text, err := refused(result, req.Tool.UniqID)
		return result, text, err
	}
	answer, err := s.Calls.Execute(c.Request().Context(), req.TrajectoryID, call)
	s.tellDraining(c, answer.Lease)
	result := answer.Result
	if err != nil && !ran(result) {
		result = api.Refused(result.ExecutionID, err)
	}
	if req.Tool.UniqID == nil {
		req.Tool.UniqID = &result.ExecutionID
	}
	text, err := timed(result, newTiming(answer))
	if err == nil {
		text, err = callAnswer(text, req.Tool.UniqID)
	}
	return result, text, err
}

// refused is the answer that tells why there was no call.
func refused(result api.Result, uniqID *string) ([]byte, error) {
	text, err := timed(result, timing{})
	if err != nil {
		return nil, err
	}
	return callAnswer(text, uniqID)
}

func checkTrajectory(id string) error {
	if n := len(id); n == 0 || n > slots.MaxTrajectoryBytes {
		return slots.Errorf(slots.KindBadRequest, "trajectory_id must have 1 to %d bytes, got %d", slots.MaxTrajectoryBytes, n)
	}
	return nil
}

// The names by which clients of the reference call our tools.
const (
	toolTerminal         = "terminal"
	toolTerminalStateful = "terminal_stateful"
)

// terminalArgs are what clients send beside a command that is not for the
// tool.
type terminalArgs struct {
	Timeout    json.RawMessage `json:"timeout"`
	Background json.RawMessage `json:"background"`
}

// mayHaveTerminalArgs spares most calls from being read twice.
func mayHaveTerminalArgs(args []byte) bool {
	return bytes.Contains(args, []byte("timeout")) || bytes.Contains(args, []byte("background")) || bytes.ContainsRune(args, '\\')
}

// call is the request as the container wants it.
func (r *callRequest) call() (api.Call, error) {
	call := api.Call{Tool: r.Tool.Name, Args: r.Tool.Arguments, Timeout: r.TimeoutS}
	if r.Tool.UniqID != nil {
		call.ExecutionID = *r.Tool.UniqID
	}
	if !api.IsArgs(call.Args) {
		return call, slots.Errorf(slots.KindBadRequest, "tool.arguments must be an object")
	}
	switch call.Tool {
	case toolTerminal:
		call.Tool = "bash"
	case toolTerminalStateful:
		call.Tool = "bash_stateful"
	}
	if call.Tool != "bash" && call.Tool != "bash_stateful" || !mayHaveTerminalArgs(call.Args) {
		return call, nil
	}
	var args terminalArgs
	if err := json.Unmarshal(call.Args, &args); err != nil {
		return call, api.JSONError(err)
	}
	if r.Tool.Name == toolTerminal && string(args.Background) == "true" {
		return call, slots.Errorf(slots.KindBadRequest, "terminal background execution is not supported in sandbox")
	}
	// A model may name a timeout among the arguments. Clients send null for none.
	asked, err := call.Timeout.MarshalJSON()
	if err != nil {
		return call, slots.Errorf(slots.KindBadRequest, "timeout_s cannot be read")
	}
	if string(asked) == "null" && len(args.Timeout) > 0 && args.Timeout[0] >= '0' && args.Timeout[0] <= '9' {
		if err := json.Unmarshal(args.Timeout, &call.Timeout); err != nil {
			return call, api.JSONError(err)
		}
	}
	return call, nil
}

// releaseRequest is the body of POST /release.
type releaseRequest struct {
	TrajectoryID string `json:"trajectory_id"`
}

// release answers POST /release. The slot is always made pristine, whatever
// reset_workspace says: it may be another trajectory's next.
func (s *Server) release(c echo.Context) error {
	var req releaseRequest
	if err := s.readLoose(c, &req); err != nil {
		return err
	}
	if req.TrajectoryID == "" {
		return checkTrajectory("")
	}
	s.Calls.Release(c.Request().Context(), req.TrajectoryID)
	return s.health(c)
}

// healthAnswer answers GET /health.
type healthAnswer struct {
	Status string `json:"status"`
}

// health answers GET /health.
func (s *Server) health(c echo.Context) error {
	return s.answer(c, http.StatusOK, healthAnswer{api.HealthOK})
}

// ready answers GET /readyz.
func (s *Server) ready(c echo.Context) error {
	if s.stopping.Load() {
		return errStopping
	}
	ctx, cancel := context.WithTimeout(c.Request().Context(), readyWithin)
	defer cancel()
	if err := s.Pools.Ready(ctx); err != nil {
		return err
	}
	return s.health(c)
}

// readyWithin is how long /readyz waits for the pools to be read.
const readyWithin = 100 * time.Millisecond

// poolStatus is the pools in one, as GET /status shows them.
type poolStatus struct {
	TotalSlots     int                 `json:"total_slots"`
	AvailableSlots int                 `json:"available_slots"`
	AcquiredSlots  int                 `json:"acquired_slots"`
	Containers     int                 `json:"containers"`
	SlotsByState   map[slots.State]int `json:"slots_by_state"`
}

// statusAnswer answers GET /status.
type statusAnswer struct {
	QueueSize     int        `json:"queue_size"` // calls that wait for a slot or to be sent
	TotalRequests uint64     `json:"total_requests"`
	TotalErrors   uint64     `json:"total_errors"`
	Pool          poolStatus `json:"pool"`
}

// status answers GET /status.
func (s *Server) status(c echo.Context) error {
	a := statusAnswer{
		TotalRequests: s.requests.Load(), TotalErrors: s.failures.Load(),
		Pool: poolStatus{SlotsByState: map[slots.State]int{}},
	}
	for _, p := range s.Pools.Stats() {
		a.QueueSize += p.Queue
		a.Pool.TotalSlots += p.Slots
		a.Pool.AvailableSlots += p.Available
		a.Pool.AcquiredSlots += p.Acquired
		for _, n := range p.Containers {
			a.Pool.Containers += n
		}
		for state, n := range p.ByState {
			a.Pool.SlotsByState[state] += n
		}
	}
	for _, d := range s.Calls.Stats() {
		a.QueueSize += d.Waiting + d.Outside
	}
	return s.answer(c, http.StatusOK, a)
}

// artifacts answers POST /artifacts/*: the container answers it, for the slot
// of the trajectory. q is the container's request, in which slot and token are
// to be filled in.
func (s *Server) artifacts(c echo.Context, q any, slot *string, token **uint64) error {
	trajectory, err := s.readArtifacts(c, q)
	if err != nil {
		return err
	}
	ctx := c.Request().Context()
	lease, done, err := s.Calls.Use(ctx, trajectory)
	if err == calls.ErrNoSlot { //nolint:errorlint // the one value, never wrapped
		return &httpkit.StatusError{Status: http.StatusOK, Err: calls.ErrNoSlot} // as the reference does
	}
	if err != nil {
		return err
	}
	defer done()
	*slot, *token = lease.Slot.SlotID, &lease.Slot.Token
	text, err := json.Marshal(q)
	if err != nil {
		return slots.Errorf(slots.KindInternal, "encode request: %w", err)
	}
	return s.Calls.Told(trajectory, lease, s.forward(c, lease, message{path: c.Path(), body: bytes.NewReader(text)}))
}

// readArtifacts reads the body into q, and the trajectory's id.
func (s *Server) readArtifacts(c echo.Context, q any) (trajectory string, err error) {
	b, err := s.readBody(c)
	if err != nil {
		return "", err
	}
	defer httpkit.PutBuffer(b)
	var who struct {
		TrajectoryID string `json:"trajectory_id"`
	}
	if !api.IsObject(b.Bytes()) {
		return "", api.ErrInvalidJSON
	}
	for _, v := range []any{&who, q} {
		if err := json.Unmarshal(b.Bytes(), v); err != nil {
			return "", api.JSONError(err)
		}
	}
	return who.TrajectoryID, checkTrajectory(who.TrajectoryID)
}

func (s *Server) readArtifact(c echo.Context) error {
	var q api.ReadRequest
	return s.artifacts(c, &q, &q.SlotID, &q.Token)
}

func (s *Server) listArtifacts(c echo.Context) error {
	var q api.ListRequest
	return s.artifacts(c, &q, &q.SlotID, &q.Token)
}

func (s *Server) archiveArtifacts(c echo.Context) error {
	var q api.ArchiveRequest
	return s.artifacts(c, &q, &q.SlotID, &q.Token)
}
