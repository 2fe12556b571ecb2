package client

import (
	"context"
	"encoding/json"
	"net/http"

	"berth/orchestrator/poolapi"
	"berth/sandboxd/api"
	"berth/sandboxd/client"
)

// RunTool runs a function tool for the organisation. A tool that fails is a
// result whose Status is error; the error says that there was no run.
func (o Organization) RunTool(ctx context.Context, run poolapi.ToolRun) (poolapi.ToolResult, error) {
	var result poolapi.ToolResult
	err := o.call(ctx, client.Request{Method: http.MethodPost, Path: "/v1/tools/run", Body: run}, &result)
	return result, err
}

// FollowTool runs a function tool like RunTool, and calls progress with each
// line that the build of its environment has to say.
func (o Organization) FollowTool(ctx context.Context, run poolapi.ToolRun, progress func(line string)) (poolapi.ToolResult, error) {
	r := client.Request{Method: http.MethodPost, Path: "/v1/tools/run", Body: run, Header: o.header()}
	for line, err := range o.c.wire.Lines(ctx, r) {
		var e poolapi.ToolEvent
		if err == nil {
			err = json.Unmarshal(line, &e)
		}
		switch {
		case err != nil:
			return poolapi.ToolResult{}, err
		case e.Error != nil:
			return poolapi.ToolResult{}, api.ErrorAnswer{Error: *e.Error}.Err()
		case e.Result != nil:
			return *e.Result, nil
		case e.Event == api.EventProgress:
			progress(e.Text)
		}
	}
	return poolapi.ToolResult{}, ctx.Err() // not reached: Lines ends with an error
}

// RecreateEnvironment builds the environment of the local sandbox anew.
func (o Organization) RecreateEnvironment(ctx context.Context) (poolapi.SandboxConfig, error) {
	return o.sandbox(ctx, http.MethodPost, "/local/recreate-venv", nil)
}
