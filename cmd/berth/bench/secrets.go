package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"berth/cmd/berth/tooldemo"
	"berth/orchestrator/poolapi"
	"berth/sandboxd/api"
)

// crashWithin is how long a process may take that is to end or to come back.
const crashWithin = 30 * time.Second

// failing are tools that end in every way that a tool can.
var failing = map[string]poolapi.Tool{
	"raised":    {SourceCode: "import os\ndef f(x):\n    raise ValueError(len(os.environ['DEMO_KEY']))\n"},
	"exited":    {SourceCode: "import os\ndef f(x):\n    os._exit(3)\n"},
	"crashed":   {SourceCode: "import os\ndef f(x):\n    os.abort()\n"},
	"timed out": {SourceCode: "import time\ndef f(x):\n    time.sleep(60)\n"},
	"no source": {SourceCode: "def f(:\n"},
}

// measureSecrets counts where a secret shows of all runs so far, those that ran
// for other rows too. It runs more that succeed and that fail, and in the end
// has the agent and the orchestrator crash, with which the pool is over.
func measureSecrets(ctx context.Context, b *bench) (finding, error) {
	p, t := b.pool, b.pool.tools
	var shown []string
	search := func(where string, text []byte) {
		if t.secrets.In(text) {
			shown = append(shown, where)
		}
	}
	refused, err := t.misuse(ctx, p.running.Token, p.running.URL)
	if err != nil {
		return finding{}, err
	}
	search("refusals", refused)
	if !slices.ContainsFunc(t.answers, func(r poolapi.ToolResult) bool { return r.Status == api.FunctionSuccess }) {
		return finding{}, fmt.Errorf("no tool has run (apt-get install python3): %w", exec.ErrNotFound)
	}
	answers, err := json.Marshal(t.answers)
	if err != nil {
		return finding{}, fmt.Errorf("encode answers: %w", err)
	}
	search("answers", answers)
	at, token, err := p.where(ctx)
	if err != nil {
		return finding{}, err
	}
	from := map[string]string{at + "/metrics": token}
	for _, path := range []string{"/metrics", "/status", "/v1/containers", "/v1/leases", "/v1/pools", "/v1/sandbox-config"} {
		from[p.running.URL+path] = p.running.Token
	}
	for url, token := range from {
		status, text, err := ask(ctx, http.MethodGet, url, token, "")
		if err != nil {
			return finding{}, err
		}
		if status != http.StatusOK {
			return finding{}, fmt.Errorf("%s was answered %d: %.100s", url, status, text)
		}
		search(url, text)
	}
	files, found, err := p.crash(ctx)
	if err := errors.Join(err, b.stop()); err != nil {
		return finding{}, err
	}
	shown = append(shown, found...)
	detail := fmt.Sprintf("%d answers, %d files, 2 crashes", len(t.answers), files)
	if len(shown) > 0 {
		detail += ": " + strings.Join(shown, ", ")
	}
	return finding{values: []float64{float64(len(shown))}, detail: detail}, nil
}

// misuse has tools succeed and fail in many ways, and returns what was answered
// to requests that nobody can carry out.
func (t *tools) misuse(ctx context.Context, token, url string) (refusals []byte, err error) {
	languages := []string{"python", "typescript"}
	tooldemo.Run(ctx, t, t.secrets, languages, nil) // whether these do as promised is not asked here
	for name, tool := range failing {
		tool.Name, tool.SourceType = "f", "python"
		result, err := t.RunTool(ctx, poolapi.ToolRun{Tool: tool, Args: oneArgument, Env: map[string]*string{"MORE": &t.secrets.Token}, TimeoutS: api.Seconds(1)})
		if err != nil {
			return nil, err
		}
		if result.Error == nil {
			return nil, fmt.Errorf("a tool that %s succeeded", name)
		}
	}
	secret := t.secrets.Token
	for _, body := range []string{
		`{"env":{"A":"` + secret, // no JSON
		`{"more":"` + secret + `"}`,
		`{"tool":{"name":"f","source_code":"# ` + secret + `","source_type":"typescript"}}`,
		`{"tool":{"name":"f","source_code":"def f(): pass","source_type":"python"},"env":{"A":"` + secret + `\u0000"}}`,
		`{"tool":{"name":"f","source_code":"def f(x): pass","source_type":"python","json_schema":{"properties":{"x":{"type":"integer"}}}},"args":{"x":"` + secret + `"}}`,
	} {
		status, text, err := ask(ctx, http.MethodPost, url+"/v1/tools/run", token, body)
		if err != nil {
			return nil, err
		}
		if status/100 != 4 {
			return nil, fmt.Errorf("a request that is wrong was answered %d: %.100s", status, text)
		}
		refusals = append(refusals, text...)
	}
	return refusals, nil
}

// ask sends a request, and reads the answer whatever it is.
func ask(ctx context.Context, method, url, token, body string) (status int, text []byte, err error) {
	request, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return 0, nil, fmt.Errorf("ask: %w", err)
	}
	request.Header.Set("Authorization", "Bearer "+token)
	request.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, nil, fmt.Errorf("ask: %w", err)
	}
	defer answer.Body.Close()
	text, err = io.ReadAll(answer.Body)
	if err != nil {
		err = fmt.Errorf("read answer: %w", err)
	}
	return answer.StatusCode, text, err
}

// crash kills the agent in the middle of its work, which it survives every
// other way, and then has the orchestrator crash and say on its log what it was
// doing. It returns what the files say in the end.
func (p *pool) crash(ctx context.Context) (files int, shown []string, err error) {
	agent, err := p.agent()
	if err == nil {
		err = syscall.Kill(agent, syscall.SIGKILL)
	}
	if err != nil {
		return 0, nil, explained(fmt.Errorf("have agent crash: %w", err))
	}
	if err := ended(ctx, agent); err != nil {
		return 0, nil, err
	}
	if err := p.serves(ctx); err != nil { // it is started again
		return 0, nil, err
	}
	if agent, err = p.agent(); err != nil {
		return 0, nil, err
	}
	if err := p.running.Dump(); err != nil {
		return 0, nil, err
	}
	// Nobody is there any more who ends it.
	if err := syscall.Kill(agent, syscall.SIGTERM); err != nil {
		return 0, nil, fmt.Errorf("end agent: %w", err)
	}
	if err := ended(ctx, agent); err != nil {
		return 0, nil, err
	}
	return p.tools.secrets.Below(filepath.Dir(p.running.DataDir))
}

// serves waits until the pool's one container is ready.
func (p *pool) serves(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, crashWithin, fmt.Errorf("the agent that crashed is not back after %v", crashWithin))
	defer cancel()
	for {
		at, token, err := p.where(ctx)
		if err == nil {
			status, _, err := ask(ctx, http.MethodGet, at+"/readyz", token, "")
			if err == nil && status == http.StatusOK {
				return nil
			}
		}
		select {
		case <-time.After(poolLook):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// agent is the process of the pool's one container.
func (p *pool) agent() (int, error) {
	table, err := readProcesses()
	if err != nil {
		return 0, err
	}
	found := table.children(p.running.PID)
	if len(found) != 1 {
		return 0, fmt.Errorf("found %d agents of one container", len(found))
	}
	return found[0], nil
}

// ended waits for the end of a process that is not ours.
func ended(ctx context.Context, pid int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, crashWithin, fmt.Errorf("process %d has not ended after %v", pid, crashWithin))
	defer cancel()
	for !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		select {
		case <-time.After(poolLook):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}
