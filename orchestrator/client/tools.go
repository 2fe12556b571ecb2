package client

import (
	"context"
	"net/http"

	"berth/orchestrator/poolapi"
	"berth/sandboxd/client"
)

// RunTool runs a function tool for the organisation. A tool that fails is a
// result whose Status is error; the error says that there was no run.
func (o Organization) RunTool(ctx context.Context, run poolapi.ToolRun) (poolapi.ToolResult, error) {
	var result poolapi.ToolResult
	err := o.call(ctx, client.Request{Method: http.MethodPost, Path: "/v1/tools/run", Body: run}, &result)
	return result, err
}

// RecreateEnvironment builds the environment of the local sandbox anew.
func (o Organization) RecreateEnvironment(ctx context.Context) (poolapi.SandboxConfig, error) {
	return o.sandbox(ctx, http.MethodPost, "/local/recreate-venv", nil)
}
