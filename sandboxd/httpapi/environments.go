package httpapi

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"berth/sandboxd/api"
	"berth/sandboxd/httpkit"
	"berth/slots"
)

// listEnvironments answers GET /v1/environments.
func (s *Server) listEnvironments(c echo.Context) error {
	return s.answer(c, http.StatusOK, s.Environments.List())
}

// deleteEnvironment answers DELETE /v1/environments/{key}.
func (s *Server) deleteEnvironment(c echo.Context) error {
	key, err := httpkit.PathValue(c.Request(), c.Param("key"))
	if err != nil {
		return err
	}
	body, err := s.readBody(c)
	if err != nil {
		return err
	}
	defer httpkit.PutBuffer(body)
	if body.Len() > 0 { // there is nothing to say in it, but to be strict about
		if err := api.DecodeStrict(body.Bytes(), &struct{}{}); err != nil {
			return err
		}
	}
	if err := s.Environments.Delete(key); err != nil {
		return err
	}
	return s.answer(c, http.StatusOK, api.DeletedEnvironment{Key: key, Deleted: true})
}

// putEnvironment answers PUT /v1/environments/{key}: at once when the environment
// is there, else when it is built, with what the build says on the way if the
// client wants a stream.
func (s *Server) putEnvironment(c echo.Context) error {
	r := c.Request()
	key, err := httpkit.PathValue(r, c.Param("key"))
	if err != nil {
		return err
	}
	var spec api.EnvironmentSpec
	if err := s.readStrict(c, &spec); err != nil {
		return err
	}
	recreate := false
	if text := r.URL.Query().Get("recreate"); text != "" {
		if recreate, err = strconv.ParseBool(text); err != nil {
			return slots.Errorf(slots.KindBadRequest, "recreate must be true or false")
		}
	}
	own, err := spec.Key()
	if err != nil {
		return err
	}
	if own != key || own == "" {
		return slots.Errorf(slots.KindBadRequest, "the environment's key is %q, not %.80q", own, key)
	}
	if mode := httpkit.Streamed(r); mode != httpkit.Plain {
		return s.streamEnvironment(c, mode, spec, recreate)
	}
	result, err := s.Environments.Ensure(r.Context(), spec, recreate, nil)
	if err != nil {
		return err
	}
	return s.answer(c, http.StatusOK, result)
}

// streamEnvironment answers with the build's lines and its result.
func (s *Server) streamEnvironment(c echo.Context, m httpkit.Mode, spec api.EnvironmentSpec, recreate bool) error {
	ctx, cancel := context.WithCancel(c.Request().Context())
	var working sync.WaitGroup
	defer working.Wait()
	defer cancel()
	events := make(chan api.EnvironmentEvent)
	working.Go(func() {
		defer close(events)
		pass := func(e api.EnvironmentEvent) {
			select {
			case events <- e:
			case <-ctx.Done():
			}
		}
		result, err := s.Environments.Ensure(ctx, spec, recreate, func(line string) {
			pass(api.EnvironmentEvent{Event: api.EventProgress, Text: line})
		})
		if err != nil {
			fault := api.NewErrorAnswer(err).Error
			result = api.EnvironmentResult{Error: &fault}
		}
		pass(api.EnvironmentEvent{Event: api.EventResult, EnvironmentResult: &result})
	})
	out := s.newSink(c, m)
	alive := time.NewTicker(s.config.KeepAlive)
	defer alive.Stop()
	for n := 0; ; n++ {
		e := api.EnvironmentEvent{Event: api.EventPing}
		more := true
		select {
		case e, more = <-events:
		case <-alive.C:
		}
		if !more {
			return nil
		}
		text, err := json.Marshal(e)
		if err != nil {
			return slots.Errorf(slots.KindInternal, "encode event: %w", err)
		}
		out.add(string(e.Event), strconv.Itoa(n), text)
		if out.flush() != nil || e.Event == api.EventResult {
			return nil // it is the last event, or nobody is left to be told; the build goes on
		}
	}
}
