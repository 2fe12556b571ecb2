package httpapi

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"berth/orchestrator/poolapi"
	"berth/sandboxd/api"
	"berth/sandboxd/httpkit"
	"berth/slots"
)

// Tools run function tools. A *function.Runner does.
type Tools interface {
	// Run calls progress, if it is not nil, with each line that the build of the
	// run's environment has to say, until it returns.
	Run(ctx context.Context, organization string, run *poolapi.ToolRun, progress func(line string)) (poolapi.ToolResult, error)
	Recreate(ctx context.Context, organization string) (poolapi.SandboxConfig, error)
	// EndQueues refuses runs that wait for a slot, now and from now on, with
	// slots.KindDraining.
	EndQueues()
}

// toolRoutes run function tools for the organisation that
// poolapi.HeaderOrganization names.
func (s *Server) toolRoutes() []route {
	const post = http.MethodPost
	return []route{
		{post, "/v1/tools/run", styleOurs, trainer, s.runTool, about{organized: byHeader, key: keyAnswers, text: "Run a function tool", body: is[poolapi.ToolRun](), answer: is[poolapi.ToolResult](), stream: is[poolapi.ToolEvent]()}},
		{post, "/v1/sandbox-config/local/recreate-venv", styleOurs, trainer, s.recreate, about{organized: byHeader, text: "Build the environment of the local sandbox anew", answer: is[poolapi.SandboxConfig]()}},
	}
}

// runTool answers POST /v1/tools/run.
func (s *Server) runTool(c echo.Context) error {
	var run poolapi.ToolRun
	if err := s.readStrict(c, &run); err != nil {
		return err
	}
	if mode := httpkit.Streamed(c.Request()); mode != httpkit.Plain {
		return s.streamTool(c, mode, &run)
	}
	result, err := s.Tools.Run(c.Request().Context(), organization(c), &run, nil)
	if err != nil {
		return err
	}
	return s.answer(c, http.StatusOK, result)
}

// streamTool answers with the lines of the build and the result. A run that is
// over before any of them is answered as without a stream if it was refused.
func (s *Server) streamTool(c echo.Context, m httpkit.Mode, run *poolapi.ToolRun) error {
	ctx, cancel := context.WithCancel(c.Request().Context())
	var working sync.WaitGroup
	defer working.Wait()
	defer cancel()
	lines, ended := make(chan string), make(chan error, 1)
	var result poolapi.ToolResult // valid once ended has its element
	working.Go(func() {
		var err error
		result, err = s.Tools.Run(ctx, organization(c), run, func(line string) {
			select {
			case lines <- line:
			case <-ctx.Done():
			}
		})
		ended <- err
	})
	alive := time.NewTicker(s.config.Stall / 2)
	defer alive.Stop()
	var out *sink
	for {
		var e poolapi.ToolEvent
		var failed error
		select {
		case line := <-lines:
			e = poolapi.ToolEvent{Event: api.EventProgress, Text: line}
		case <-alive.C:
			e.Event = api.EventPing
		case failed = <-ended:
			if failed != nil && out == nil {
				return failed
			}
			if e = (poolapi.ToolEvent{Event: api.EventResult, Result: &result}); failed != nil {
				fault := api.NewErrorAnswer(failed).Error
				e.Result, e.Error = nil, &fault
			}
		}
		text, err := json.Marshal(e)
		if err != nil {
			return slots.Errorf(slots.KindInternal, "encode event: %w", err)
		}
		if out == nil {
			out = s.newSink(c, m)
		}
		if out.write(e.Event, text) != nil || e.Event == api.EventResult {
			return failed // which the stream has told, or nobody is left to be told
		}
	}
}

// recreate answers POST /v1/sandbox-config/local/recreate-venv.
func (s *Server) recreate(c echo.Context) error {
	return s.answerSandbox(c)(s.Tools.Recreate(c.Request().Context(), organization(c)))
}
