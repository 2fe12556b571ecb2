package client

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"

	"berth/orchestrator/poolapi"
	"berth/sandboxd/client"
)

// Organization is what concerns the function tools of one organisation. All
// methods may be called at once.
type Organization struct {
	c  *Client
	id string
}

// Organization is the one with the ID; "": poolapi.DefaultOrganization.
func (c *Client) Organization(id string) Organization {
	return Organization{c, cmp.Or(id, poolapi.DefaultOrganization)}
}

// call sends r as the organisation's.
func (o Organization) call(ctx context.Context, r client.Request, answer any) error {
	r.Header = o.header()
	return o.c.wire.Call(ctx, r, answer)
}

func (o Organization) header() http.Header { return http.Header{poolapi.HeaderOrganization: {o.id}} }

// Get looks at what is set about the organisation itself.
func (o Organization) Get(ctx context.Context) (poolapi.Organization, error) {
	var answer poolapi.Organization
	err := o.call(ctx, client.Request{Method: http.MethodGet, Path: "/v1/organizations/" + url.PathEscape(o.id), Again: true}, &answer)
	return answer, err
}

// Patch changes what is set about the organisation itself, which is for
// operators.
func (o Organization) Patch(ctx context.Context, patch poolapi.OrganizationPatch) (poolapi.Organization, error) {
	var answer poolapi.Organization
	err := o.call(ctx, client.Request{Method: http.MethodPatch, Path: "/v1/organizations/" + url.PathEscape(o.id), Body: patch, Again: true}, &answer)
	return answer, err
}

const sandboxPath = "/v1/sandbox-config"

func (o Organization) sandbox(ctx context.Context, method, path string, body any) (poolapi.SandboxConfig, error) {
	var answer poolapi.SandboxConfig
	err := o.call(ctx, client.Request{Method: method, Path: sandboxPath + path, Body: body, Again: true}, &answer)
	return answer, err
}

// PutSandbox makes the sandbox config of the type, or replaces it.
func (o Organization) PutSandbox(ctx context.Context, of poolapi.SandboxType, settings json.RawMessage) (poolapi.SandboxConfig, error) {
	return o.sandbox(ctx, http.MethodPost, "", poolapi.SandboxConfigRequest{Type: of, Config: settings})
}

// DefaultSandbox is the sandbox config of the type, which is made of defaults
// when there is none.
func (o Organization) DefaultSandbox(ctx context.Context, of poolapi.SandboxType) (poolapi.SandboxConfig, error) {
	return o.sandbox(ctx, http.MethodPost, "/"+url.PathEscape(string(of))+"/default", nil)
}

// Sandbox finds a sandbox config. One of another organisation is
// slots.KindNotFound.
func (o Organization) Sandbox(ctx context.Context, id string) (poolapi.SandboxConfig, error) {
	return o.sandbox(ctx, http.MethodGet, "/"+url.PathEscape(id), nil)
}

// PatchSandbox changes some settings of a sandbox config; null takes one back
// to its default.
func (o Organization) PatchSandbox(ctx context.Context, id string, patch poolapi.SandboxConfigRequest) (poolapi.SandboxConfig, error) {
	return o.sandbox(ctx, http.MethodPatch, "/"+url.PathEscape(id), patch)
}

// DeleteSandbox deletes a sandbox config and its variables.
func (o Organization) DeleteSandbox(ctx context.Context, id string) error {
	return o.call(ctx, client.Request{Method: http.MethodDelete, Path: sandboxPath + "/" + url.PathEscape(id)}, nil)
}

// Page says which part of a list is meant; the zero Page is the first part.
type Page struct {
	After string // what the part before was answered with
	Limit int    // at most so many; 0: as the server has it
}

func (p Page) query() url.Values {
	q := url.Values{}
	if p.After != "" {
		q.Set("after", p.After)
	}
	if p.Limit != 0 {
		q.Set("limit", strconv.Itoa(p.Limit))
	}
	return q
}

// Sandboxes lists the sandbox configs by creation; of one type unless that is
// "".
func (o Organization) Sandboxes(ctx context.Context, of poolapi.SandboxType, page Page) (poolapi.SandboxConfigs, error) {
	q := page.query()
	if of != "" {
		q.Set("sandbox_type", string(of))
	}
	var list poolapi.SandboxConfigs
	err := o.call(ctx, client.Request{Method: http.MethodGet, Path: sandboxPath, Query: q, Again: true}, &list)
	return list, err
}

func variablesPath(configID string) string {
	return sandboxPath + "/" + url.PathEscape(configID) + "/environment-variable"
}

func variablePath(id string) string {
	return sandboxPath + "/environment-variable/" + url.PathEscape(id)
}

// PutVariable makes the environment variable of a key, or replaces it.
func (o Organization) PutVariable(ctx context.Context, configID string, want poolapi.EnvironmentVariableRequest) (poolapi.EnvironmentVariable, error) {
	var answer poolapi.EnvironmentVariable
	err := o.call(ctx, client.Request{Method: http.MethodPost, Path: variablesPath(configID), Body: want, Again: true}, &answer)
	return answer, err
}

// Variables lists the environment variables of a sandbox config by creation.
// To reveal their values is for operators.
func (o Organization) Variables(ctx context.Context, configID string, page Page, reveal bool) (poolapi.EnvironmentVariables, error) {
	q := page.query()
	if reveal {
		q.Set("reveal", "true")
	}
	var list poolapi.EnvironmentVariables
	err := o.call(ctx, client.Request{Method: http.MethodGet, Path: variablesPath(configID), Query: q, Again: true}, &list)
	return list, err
}

// PatchVariable changes an environment variable.
func (o Organization) PatchVariable(ctx context.Context, id string, patch poolapi.EnvironmentVariablePatch) (poolapi.EnvironmentVariable, error) {
	var answer poolapi.EnvironmentVariable
	err := o.call(ctx, client.Request{Method: http.MethodPatch, Path: variablePath(id), Body: patch, Again: true}, &answer)
	return answer, err
}

// DeleteVariable deletes an environment variable.
func (o Organization) DeleteVariable(ctx context.Context, id string) error {
	return o.call(ctx, client.Request{Method: http.MethodDelete, Path: variablePath(id)}, nil)
}
