package httpapi

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"

	"github.com/labstack/echo/v4"

	"berth/orchestrator/config"
	"berth/orchestrator/poolapi"
	"berth/slots"
)

// configRoutes are about what organisations set for their function tools. Each
// is about the organisation that poolapi.HeaderOrganization names: what belongs
// to another one is not found.
func (s *Server) configRoutes() []route {
	const get, post, patch, remove = http.MethodGet, http.MethodPost, http.MethodPatch, http.MethodDelete
	const all, one = "/v1/sandbox-config", "/v1/sandbox-config/:config"
	const variables, variable = one + "/environment-variable", all + "/environment-variable/:variable"
	request, sandbox := is[poolapi.SandboxConfigRequest](), is[poolapi.SandboxConfig]()
	organization := is[poolapi.Organization]()
	routes := []route{
		{post, all, styleOurs, trainer, s.putSandbox, about{organized: byHeader, text: "Make the sandbox config of a type, or replace it", body: request, answer: sandbox}},
		{get, all, styleOurs, trainer, s.listSandboxes, about{organized: byHeader, text: "List sandbox configs by creation", query: []string{"limit", "after", "sandbox_type"}, answer: is[poolapi.SandboxConfigs]()}},
		{post, all + "/local", styleOurs, trainer, s.putLocal, about{organized: byHeader, text: "Make the local sandbox config of these settings, or replace it", body: is[json.RawMessage](), answer: sandbox}},
		{get, one, styleOurs, trainer, s.getSandbox, about{organized: byHeader, text: "Look at a sandbox config", answer: sandbox}},
		{patch, one, styleOurs, trainer, s.patchSandbox, about{organized: byHeader, text: "Change some settings of a sandbox config", body: request, answer: sandbox}},
		{remove, one, styleOurs, trainer, s.deleteSandbox, about{organized: byHeader, text: "Delete a sandbox config and its variables", answer: is[poolapi.Deleted]()}},
		{post, variables, styleOurs, trainer, s.putVariable, about{organized: byHeader, text: "Make the environment variable of a key, or replace it", body: is[poolapi.EnvironmentVariableRequest](), answer: is[poolapi.EnvironmentVariable]()}},
		{get, variables, styleOurs, trainer, s.listVariables, about{organized: byHeader, text: "List environment variables by creation", query: []string{"limit", "after", "reveal"}, answer: is[poolapi.EnvironmentVariables]()}},
		{patch, variable, styleOurs, trainer, s.patchVariable, about{organized: byHeader, text: "Change an environment variable", body: is[poolapi.EnvironmentVariablePatch](), answer: is[poolapi.EnvironmentVariable]()}},
		{remove, variable, styleOurs, trainer, s.deleteVariable, about{organized: byHeader, text: "Delete an environment variable", answer: is[poolapi.Deleted]()}},
		{get, "/v1/organizations/:organization", styleOurs, trainer, s.getOrganization, about{organized: byPath, text: "Look at an organization", answer: organization}},
		{patch, "/v1/organizations/:organization", styleOurs, operator, s.patchOrganization, about{organized: byPath, text: "Change an organization", body: is[poolapi.OrganizationPatch](), answer: organization}},
	}
	for _, of := range []poolapi.SandboxType{poolapi.SandboxLocal, poolapi.SandboxIsolated, poolapi.SandboxE2B} {
		routes = append(routes, route{
			post, all + "/" + string(of) + "/default", styleOurs, trainer, s.defaultSandbox(of),
			about{organized: byHeader, text: "Get the " + string(of) + " sandbox config, or make it of defaults", answer: sandbox},
		})
	}
	return routes
}

// ownerAnd is the organisation of the request, and the path parameter.
func ownerAnd(c echo.Context, parameter string) (organizationID, id string, err error) {
	id, err = param(c, parameter)
	return organization(c), id, err
}

// only refuses queries with other names, or with one name twice.
func only(c echo.Context, names ...string) error {
	for name, values := range c.QueryParams() {
		if !slices.Contains(names, name) {
			return slots.Errorf(slots.KindBadRequest, "unknown parameter %.80s", name)
		}
		if len(values) != 1 {
			return slots.Errorf(slots.KindBadRequest, "%s wants one value", name)
		}
	}
	return nil
}

// page reads which part of a list is meant.
func page(c echo.Context) (config.Page, error) {
	p := config.Page{After: c.QueryParam("after")}
	if text := c.QueryParam("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return p, slots.Errorf(slots.KindBadRequest, "limit must be a number above 0, got %.20q", text)
		}
		p.Limit = n
	}
	return p, nil
}

// putSandbox answers POST /v1/sandbox-config.
func (s *Server) putSandbox(c echo.Context) error {
	owner := organization(c)
	var want poolapi.SandboxConfigRequest
	if err := s.readStrict(c, &want); err != nil {
		return err
	}
	return s.answerSandbox(c)(s.Configs.Put(c.Request().Context(), owner, want.Type, want.Config))
}

// putLocal answers POST /v1/sandbox-config/local.
func (s *Server) putLocal(c echo.Context) error {
	owner := organization(c)
	var settings json.RawMessage
	if err := s.readStrict(c, &settings); err != nil {
		return err
	}
	return s.answerSandbox(c)(s.Configs.Put(c.Request().Context(), owner, poolapi.SandboxLocal, settings))
}

// answerSandbox answers with what came of asking for a config.
func (s *Server) answerSandbox(c echo.Context) func(poolapi.SandboxConfig, error) error {
	return func(found poolapi.SandboxConfig, err error) error {
		if err != nil {
			return err
		}
		return s.answer(c, http.StatusOK, found)
	}
}

// defaultSandbox answers POST /v1/sandbox-config/{type}/default.
func (s *Server) defaultSandbox(of poolapi.SandboxType) echo.HandlerFunc {
	return func(c echo.Context) error {
		return s.answerSandbox(c)(s.Configs.Default(c.Request().Context(), organization(c), of))
	}
}

// listSandboxes answers GET /v1/sandbox-config.
func (s *Server) listSandboxes(c echo.Context) error {
	owner := organization(c)
	if err := only(c, "limit", "after", "sandbox_type"); err != nil {
		return err
	}
	part, err := page(c)
	if err != nil {
		return err
	}
	list, after, err := s.Configs.List(c.Request().Context(), owner, poolapi.SandboxType(c.QueryParam("sandbox_type")), part)
	if err != nil {
		return err
	}
	return s.answer(c, http.StatusOK, poolapi.SandboxConfigs{SandboxConfigs: list, After: after})
}

// getSandbox answers GET /v1/sandbox-config/{config}.
func (s *Server) getSandbox(c echo.Context) error {
	owner, id, err := ownerAnd(c, "config")
	if err != nil {
		return err
	}
	return s.answerSandbox(c)(s.Configs.Get(c.Request().Context(), owner, id))
}

// patchSandbox answers PATCH /v1/sandbox-config/{config}.
func (s *Server) patchSandbox(c echo.Context) error {
	owner, id, err := ownerAnd(c, "config")
	if err != nil {
		return err
	}
	var patch poolapi.SandboxConfigRequest
	if err := s.readStrict(c, &patch); err != nil {
		return err
	}
	return s.answerSandbox(c)(s.Configs.Patch(c.Request().Context(), owner, id, patch))
}

// deleteSandbox answers DELETE /v1/sandbox-config/{config}.
func (s *Server) deleteSandbox(c echo.Context) error {
	owner, id, err := ownerAnd(c, "config")
	if err != nil {
		return err
	}
	if err := s.Configs.Delete(c.Request().Context(), owner, id); err != nil {
		return err
	}
	return s.answer(c, http.StatusOK, poolapi.Deleted{ID: id, Deleted: true})
}

// shownVariable is a variable as it travels.
func shownVariable(v config.Variable, reveal bool) poolapi.EnvironmentVariable {
	out := poolapi.EnvironmentVariable{
		ID: v.ID, SandboxConfigID: v.ConfigID, OrganizationID: v.Organization, Key: v.Key, Value: poolapi.MaskedValue,
		Revealed: reveal, Description: v.Description, CreatedAt: v.CreatedAt, UpdatedAt: v.UpdatedAt,
	}
	if reveal {
		out.Value = v.Value.Reveal()
	}
	return out
}

// answerVariable answers with what came of asking for a variable, masked.
func (s *Server) answerVariable(c echo.Context) func(config.Variable, error) error {
	return func(v config.Variable, err error) error {
		if err != nil {
			return err
		}
		return s.answer(c, http.StatusOK, shownVariable(v, false))
	}
}

// putVariable answers POST /v1/sandbox-config/{config}/environment-variable.
func (s *Server) putVariable(c echo.Context) error {
	owner, id, err := ownerAnd(c, "config")
	if err != nil {
		return err
	}
	var want poolapi.EnvironmentVariableRequest
	if err := s.readStrict(c, &want); err != nil {
		return err
	}
	return s.answerVariable(c)(s.Configs.PutVariable(c.Request().Context(), owner, id, want))
}

// listVariables answers GET /v1/sandbox-config/{config}/environment-variable.
// Values are for operators who ask for them.
func (s *Server) listVariables(c echo.Context) error {
	owner, id, err := ownerAnd(c, "config")
	if err == nil {
		err = only(c, "limit", "after", "reveal")
	}
	if err != nil {
		return err
	}
	part, err := page(c)
	if err != nil {
		return err
	}
	reveal := false
	switch text := c.QueryParam("reveal"); text {
	case "", "false":
	case "true":
		if _, err := s.tokens.admit(c.Request(), operator); err != nil {
			return err
		}
		reveal = true
	default:
		return slots.Errorf(slots.KindBadRequest, "reveal must be true or false, got %.20q", text)
	}
	list, after, err := s.Configs.Variables(c.Request().Context(), owner, id, part, reveal)
	if err != nil {
		return err
	}
	if reveal {
		s.logger.Info("environment variables revealed", "organization", owner, "config", id, "count", len(list))
		c.Response().Header().Set(echo.HeaderCacheControl, "no-store")
	}
	shown := make([]poolapi.EnvironmentVariable, len(list))
	for i, v := range list {
		shown[i] = shownVariable(v, reveal)
	}
	return s.answer(c, http.StatusOK, poolapi.EnvironmentVariables{EnvironmentVariables: shown, After: after})
}

// patchVariable answers PATCH
// /v1/sandbox-config/environment-variable/{variable}.
func (s *Server) patchVariable(c echo.Context) error {
	owner, id, err := ownerAnd(c, "variable")
	if err != nil {
		return err
	}
	var patch poolapi.EnvironmentVariablePatch
	if err := s.readStrict(c, &patch); err != nil {
		return err
	}
	return s.answerVariable(c)(s.Configs.PatchVariable(c.Request().Context(), owner, id, patch))
}

// deleteVariable answers DELETE
// /v1/sandbox-config/environment-variable/{variable}.
func (s *Server) deleteVariable(c echo.Context) error {
	owner, id, err := ownerAnd(c, "variable")
	if err != nil {
		return err
	}
	if err := s.Configs.DeleteVariable(c.Request().Context(), owner, id); err != nil {
		return err
	}
	return s.answer(c, http.StatusOK, poolapi.Deleted{ID: id, Deleted: true})
}

// getOrganization answers GET /v1/organizations/{organization}.
func (s *Server) getOrganization(c echo.Context) error {
	id, err := param(c, "organization")
	if err != nil {
		return err
	}
	o, err := s.Configs.Organization(c.Request().Context(), id)
	if err != nil {
		return err
	}
	return s.answer(c, http.StatusOK, o)
}

// patchOrganization answers PATCH /v1/organizations/{organization}.
func (s *Server) patchOrganization(c echo.Context) error {
	id, err := param(c, "organization")
	if err != nil {
		return err
	}
	var patch poolapi.OrganizationPatch
	if err := s.readStrict(c, &patch); err != nil {
		return err
	}
	o, err := s.Configs.PatchOrganization(c.Request().Context(), id, patch)
	if err != nil {
		return err
	}
	if patch.PrivilegedTools != nil {
		s.logger.Info("organization changed", "organization", o.ID, "privileged_tools", o.PrivilegedTools)
	}
	return s.answer(c, http.StatusOK, o)
}
