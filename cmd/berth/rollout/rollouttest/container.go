// Package rollouttest is a small stand-in for a container, for tests: it
// answers the calls of the reference protocol that a rollout makes, on plain
// directories and without any isolation.
package rollouttest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"berth/cmd/berth/rollout"
)

// Container is an http.Handler that serves Slots workspaces below Dir.
type Container struct {
	Dir   string
	Slots int
	Token string // asked for on every route but /health and /readyz, unless empty
	// Spoil may change an answer before it is sent; nil changes none.
	Spoil func(rollout.Call, *rollout.Answer)
}

// ServeHTTP answers one request.
func (c Container) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	free := r.URL.Path == "/health" || r.URL.Path == "/readyz"
	if c.Token != "" && !free && r.Header.Get("Authorization") != "Bearer "+c.Token {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	var answer any
	switch route := r.Method + " " + r.URL.Path; route {
	case "GET /health":
		answer = map[string]any{"status": "ok", "slots": c.Slots}
	case "GET /readyz":
		answer = map[string]string{"status": "ok"}
	case "GET /slots":
		var slots []map[string]string
		for i := range c.Slots {
			slots = append(slots, map[string]string{"slot_id": "slot_" + strconv.Itoa(i), "state": "available"})
		}
		answer = map[string]any{"slots": slots}
	case "POST /execute":
		answer = c.execute(r.Context(), decode[rollout.Call](r))
	case "POST /batch":
		answers := []rollout.Answer{}
		for _, call := range decode[[]rollout.Call](r) {
			answers = append(answers, c.execute(r.Context(), call))
		}
		answer = answers
	case "POST /reset":
		answer = c.reset(decode[rollout.Call](r).SlotID)
	case "POST /artifacts/read":
		answer = c.artifact(decode[artifactRequest](r))
	default:
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer)
}

// artifactRequest is the body of POST /artifacts/read.
type artifactRequest struct {
	SlotID string `json:"slot_id"`
	Path   string `json:"path"`
}

// decode reads a body; what is no JSON reads as the zero value.
func decode[T any](r *http.Request) (body T) {
	_ = json.NewDecoder(r.Body).Decode(&body)
	return body
}

// workspace is the directory of a slot, made on first use.
func (c Container) workspace(slotID string) (string, error) {
	n, err := strconv.Atoi(strings.TrimPrefix(slotID, "slot_"))
	if err != nil || n < 0 || n >= c.Slots {
		return "", fmt.Errorf("Unknown slot: %s", slotID) //nolint:staticcheck // the reference's text
	}
	dir := filepath.Join(c.Dir, slotID)
	return dir, os.MkdirAll(dir, 0o755)
}

func (c Container) execute(ctx context.Context, call rollout.Call) rollout.Answer {
	var a rollout.Answer
	dir, err := c.workspace(call.SlotID)
	path, _ := call.Args["path"].(string)
	switch {
	case err != nil:
		a.Error = err.Error()
	case call.Tool == "bash":
		command, _ := call.Args["command"].(string)
		a = bash(ctx, dir, command)
	case call.Tool == "read_file":
		content, err := os.ReadFile(filepath.Join(dir, path))
		a = rollout.Answer{Success: true, Output: string(content)}
		if err != nil {
			a = rollout.Answer{Error: "File not found: " + path}
		}
	case call.Tool == "write_file":
		content, _ := call.Args["content"].(string)
		a = rollout.Answer{Success: true, Output: fmt.Sprintf("Successfully wrote %d bytes to %s", len(content), path)}
		if err := os.WriteFile(filepath.Join(dir, path), []byte(content), 0o644); err != nil {
			a = rollout.Answer{Error: err.Error()}
		}
	default:
		a.Error = "Unknown tool: " + call.Tool
	}
	a.ExecutionID = call.ExecutionID
	if c.Spoil != nil {
		c.Spoil(call, &a)
	}
	return a
}

func bash(ctx context.Context, dir, command string) rollout.Answer {
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, "bash", "-c", command)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &stdout, &stderr
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		return rollout.Answer{Error: err.Error()}
	} else if ok {
		err = fmt.Errorf("Exit code: %d", exit.ExitCode()) //nolint:staticcheck // the reference's text
	}
	a := rollout.Answer{
		Success: err == nil, Output: strings.TrimRight(stdout.String(), "\n"),
		Metadata: map[string]any{"exit_code": cmd.ProcessState.ExitCode()},
	}
	if stderr.Len() > 0 {
		a.Output += "\n[stderr]\n" + strings.TrimRight(stderr.String(), "\n")
	}
	if err != nil {
		a.Error = err.Error()
	}
	return a
}

func (c Container) reset(slotID string) rollout.Answer {
	dir, err := c.workspace(slotID)
	if err == nil {
		err = os.RemoveAll(dir)
	}
	if err != nil {
		return rollout.Answer{Error: err.Error()}
	}
	return rollout.Answer{Success: true, Output: "Reset workspace for " + slotID}
}

func (c Container) artifact(req artifactRequest) rollout.Artifact {
	dir, err := c.workspace(req.SlotID)
	if err != nil {
		return rollout.Artifact{Error: err.Error()}
	}
	content, err := os.ReadFile(filepath.Join(dir, req.Path))
	if err != nil {
		return rollout.Artifact{Error: "Not found: " + req.Path}
	}
	sum := sha256.Sum256(content)
	return rollout.Artifact{
		Success: true, Content: string(content), Encoding: "text",
		Bytes: int64(len(content)), SHA256: hex.EncodeToString(sum[:]),
	}
}
