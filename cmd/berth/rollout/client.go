package rollout

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"time"
)

// Client speaks the reference protocol to one container. Like the existing
// clients it never looks at the status of an execution's answer, only at its
// JSON; and it takes no answer for JSON that does not call itself so.
type Client struct {
	URL   string // http://host:port
	Token string // sent as a bearer token unless empty
	HTTP  *http.Client
}

// Call is the body of POST /execute and an element of POST /batch.
type Call struct {
	SlotID      string         `json:"slot_id"`
	Tool        string         `json:"tool"`
	Args        map[string]any `json:"args"`
	ExecutionID string         `json:"execution_id"`
	Timeout     float64        `json:"timeout"` // seconds
}

// Answer is what a container says about one execution: the reference's five keys.
type Answer struct {
	Success     bool           `json:"success"`
	Output      string         `json:"output"`
	Error       string         `json:"error"`
	ExecutionID string         `json:"execution_id"`
	Metadata    map[string]any `json:"metadata"`
}

// Artifact is the answer to POST /artifacts/read.
type Artifact struct {
	Success   bool   `json:"success"`
	Error     string `json:"error"`
	Content   string `json:"content"`
	Encoding  string `json:"encoding"`
	Truncated bool   `json:"truncated"`
	Bytes     int64  `json:"bytes"`
	SHA256    string `json:"sha256"`
}

// Health is what of GET /health a rollout looks at.
type Health struct {
	Status    string `json:"status"`
	Isolation struct {
		Level string `json:"level"`
	} `json:"isolation"`
}

// NewCall makes a call under an execution_id of its own.
func NewCall(slotID, tool string, args map[string]any) Call {
	return Call{SlotID: slotID, Tool: tool, Args: args, ExecutionID: rand.Text(), Timeout: 30}
}

// Execute runs one call and says how long the answer took.
func (c Client) Execute(ctx context.Context, call Call) (Answer, time.Duration, error) {
	var a Answer
	start := time.Now()
	err := c.post(ctx, "/execute", call, &a)
	took := time.Since(start)
	if err == nil && a.ExecutionID != call.ExecutionID {
		err = fmt.Errorf("post /execute: answer to %q carries execution_id %q", call.ExecutionID, a.ExecutionID)
	}
	return a, took, err
}

// Batch runs the calls in one request; the answers have their order.
func (c Client) Batch(ctx context.Context, calls []Call) ([]Answer, error) {
	var answers []Answer
	if err := c.post(ctx, "/batch", calls, &answers); err != nil {
		return nil, err
	}
	if len(answers) != len(calls) {
		return nil, fmt.Errorf("post /batch: %d answers to %d calls", len(answers), len(calls))
	}
	for i, a := range answers {
		if a.ExecutionID != calls[i].ExecutionID {
			return nil, fmt.Errorf("post /batch: answer %d carries execution_id %q, not that of its call", i, a.ExecutionID)
		}
	}
	return answers, nil
}

// Reset empties the slot.
func (c Client) Reset(ctx context.Context, slotID string) error {
	var a Answer
	if err := c.post(ctx, "/reset", map[string]string{"slot_id": slotID}, &a); err != nil {
		return err
	}
	if want := "Reset workspace for " + slotID; !a.Success || a.Output != want {
		return fmt.Errorf("post /reset: want %q, got %q %s", want, a.Output, a.Error)
	}
	return nil
}

// ReadArtifact fetches a file out of the slot, with its checksum.
func (c Client) ReadArtifact(ctx context.Context, slotID, path string) (Artifact, error) {
	var a Artifact
	err := c.post(ctx, "/artifacts/read", map[string]any{
		"slot_id": slotID, "path": path, "encoding": "text", "include_sha256": true,
	}, &a)
	return a, err
}

// Slots lists the ids of the container's slots.
func (c Client) Slots(ctx context.Context) ([]string, error) {
	var answer struct {
		Slots []struct {
			SlotID string `json:"slot_id"`
		} `json:"slots"`
	}
	if err := c.do(ctx, http.MethodGet, "/slots", nil, &answer); err != nil {
		return nil, err
	}
	var ids []string
	for _, s := range answer.Slots {
		ids = append(ids, s.SlotID)
	}
	if len(ids) == 0 {
		return nil, errors.New("get /slots: the container has no slots")
	}
	return ids, nil
}

// Health asks how the container is. An error means that it is not well.
func (c Client) Health(ctx context.Context) (Health, error) {
	var h Health
	if err := c.do(ctx, http.MethodGet, "/health", nil, &h); err != nil {
		return h, err
	}
	if h.Status != "ok" {
		return h, fmt.Errorf("get /health: status %q", h.Status)
	}
	return h, nil
}

func (c Client) post(ctx context.Context, route string, body, answer any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("encode body of %s: %w", route, err)
	}
	return c.do(ctx, http.MethodPost, route, text, answer)
}

// do sends one request and decodes the answer, whatever its status, unless
// the container does not know us.
func (c Client) do(ctx context.Context, method, route string, body []byte, answer any) error {
	req, err := http.NewRequestWithContext(ctx, method, c.URL+route, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("make request: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	if c.Token != "" {
		req.Header.Set("Authorization", "Bearer "+c.Token)
	}
	resp, err := c.HTTP.Do(req)
	if err != nil {
		return fmt.Errorf("call container: %w", err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return fmt.Errorf("read answer of %s: %w", route, err)
	}
	if resp.StatusCode == http.StatusUnauthorized {
		return fmt.Errorf("%s %s: %s", method, route, resp.Status)
	}
	if kind, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return fmt.Errorf("%s %s: %s with content type %q, want application/json", method, route, resp.Status, kind)
	}
	if err := json.Unmarshal(text, answer); err != nil {
		return fmt.Errorf("decode answer of %s: %w", route, err)
	}
	return nil
}
