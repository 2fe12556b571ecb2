package httpapi

import (
	"context"
	"net/http"

	"github.com/labstack/echo/v4"

	"berth/orchestrator/poolapi"
)

// Tools run function tools. A *function.Runner does.
type Tools interface {
	Run(ctx context.Context, organization string, run *poolapi.ToolRun) (poolapi.ToolResult, error)
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
		{post, "/v1/tools/run", styleOurs, trainer, s.runTool, about{organized: byHeader, key: keyAnswers, text: "Run a function tool", body: is[poolapi.ToolRun](), answer: is[poolapi.ToolResult]()}},
		{post, "/v1/sandbox-config/local/recreate-venv", styleOurs, trainer, s.recreate, about{organized: byHeader, text: "Build the environment of the local sandbox anew", answer: is[poolapi.SandboxConfig]()}},
	}
}

// runTool answers POST /v1/tools/run.
func (s *Server) runTool(c echo.Context) error {
	var run poolapi.ToolRun
	if err := s.readStrict(c, &run); err != nil {
		return err
	}
	result, err := s.Tools.Run(c.Request().Context(), organization(c), &run)
	if err != nil {
		return err
	}
	return s.answer(c, http.StatusOK, result)
}

// recreate answers POST /v1/sandbox-config/local/recreate-venv.
func (s *Server) recreate(c echo.Context) error {
	return s.answerSandbox(c)(s.Tools.Recreate(c.Request().Context(), organization(c)))
}
