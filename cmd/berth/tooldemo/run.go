package tooldemo

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"berth/orchestrator/poolapi"
	"berth/sandboxd/api"
)

var (
	//go:embed tools/order.py
	orderSource string
	//go:embed tools/notice.ts
	noticeSource string
	//go:embed tools/refuse.py
	refuseSource string
)

const noticeSchema = `{"type":"object","properties":{"item":{"type":"string"},"count":{"type":"integer"},` +
	`"tone":{"enum":["plain","loud"]}},"required":["item","count"]}`

// Runner runs tools for one organization. A client.Organization is one.
type Runner interface {
	RunTool(ctx context.Context, run poolapi.ToolRun) (poolapi.ToolResult, error)
}

// Secrets are made anew for each demo. Key is for the organization's sandbox
// config, where the caller puts it as KeyVariable; Token comes with each run.
type Secrets struct{ Key, Token string }

// KeyVariable is the variable that the tools expect Secrets.Key in.
const KeyVariable = "DEMO_KEY"

// NewSecrets makes them.
func NewSecrets() Secrets { return Secrets{Key: "key-" + rand.Text(), Token: "token-" + rand.Text()} }

// signature is what a tool can only make that has been given both.
func (s Secrets) signature(item string) string {
	h := hmac.New(sha256.New, []byte(s.Key+s.Token))
	h.Write([]byte(item))
	return hex.EncodeToString(h.Sum(nil))
}

// step is one run, and what must come of it.
type step struct {
	what  string
	run   poolapi.ToolRun
	check func(poolapi.ToolResult) error
}

// Run runs the tools of the languages, "python" and "typescript", one after
// the other. What is wrong with a run stands in the report; progress, if not
// nil, is told of each.
func Run(ctx context.Context, on Runner, secrets Secrets, languages []string, progress io.Writer) Report {
	var steps []step
	if slices.Contains(languages, "python") {
		steps = append(steps, pythonSteps(secrets)...)
	}
	if slices.Contains(languages, "typescript") {
		steps = append(steps, scriptSteps(secrets)...)
	}
	var report Report
	for _, s := range steps {
		row := Row{Tool: s.run.Tool.Name, Language: s.run.Tool.SourceType, What: s.what, Packages: packagesOf(s.run.Tool)}
		if row.Result, row.Err = on.RunTool(ctx, s.run); row.Err == nil {
			row.Err = errors.Join(s.check(row.Result), secrets.leaked(row.Result))
		}
		report.Rows = append(report.Rows, row)
		if progress != nil {
			fmt.Fprintf(progress, "[%d/%d] %s, %s: %s\n", len(report.Rows), len(steps), row.Tool, row.What, row.verdict())
		}
		if ctx.Err() != nil {
			break
		}
	}
	return report
}

func pythonSteps(secrets Secrets) []step {
	tool := poolapi.Tool{
		ID: "demo-order", Name: "order", SourceCode: orderSource, SourceType: "python",
		JSONSchema:      json.RawMessage(`{"type":"object","properties":{"item":{"type":"string"},"count":{"type":"integer"}},"required":["item"]}`),
		PipRequirements: []api.Requirement{{Name: "berth-demo-prices", Version: "==1.0"}},
	}
	ordered := func(remembered string, cached bool) func(poolapi.ToolResult) error {
		return func(r poolapi.ToolResult) error {
			want := map[string]any{"total": "0.90", "first": true, "signature": secrets.signature("apple")}
			var state struct {
				Memory struct {
					Blocks []struct{ Label, Value string }
				}
			}
			if err := json.Unmarshal(r.AgentState, &state); err != nil {
				return fmt.Errorf("the agent's state does not come back: %w", err)
			}
			if blocks := state.Memory.Blocks; len(blocks) != 1 || blocks[0].Value != remembered {
				return fmt.Errorf("the agent does not remember what it was to: %+v", blocks)
			}
			return errors.Join(returned(r, want, "ordered 3 apple"), environment(r, cached))
		}
	}
	// An integer as text, as models write them.
	args := map[string]json.RawMessage{"item": json.RawMessage(`"apple"`), "count": json.RawMessage(`"3"`)}
	return []step{
		{"requirements, state, secrets", poolapi.ToolRun{Tool: tool, Args: args, Agent: agent(secrets, "")}, ordered("3 apple\n", false)},
		{"again: nothing carried over", poolapi.ToolRun{Tool: tool, Args: args, Agent: agent(secrets, "1 pear\n")}, ordered("1 pear\n3 apple\n", true)},
		{"a tool that raises", poolapi.ToolRun{
			Tool: poolapi.Tool{Name: "refuse", SourceCode: refuseSource, SourceType: "python"},
			Args: map[string]json.RawMessage{"item": json.RawMessage(`"plum"`)},
		}, refused},
	}
}

func scriptSteps(secrets Secrets) []step {
	tool := poolapi.Tool{
		ID: "demo-notice", Name: "notice", SourceCode: noticeSource, SourceType: "typescript", JSONSchema: json.RawMessage(noticeSchema),
		NpmRequirements: []api.Requirement{{Name: "berth-demo-words", Version: "1.0.0"}},
	}
	noticed := func(text string, cached bool) func(poolapi.ToolResult) error {
		return func(r poolapi.ToolResult) error {
			want := map[string]any{"text": text, "first": true, "signature": secrets.signature("pear")}
			return errors.Join(returned(r, want, "noticed 2 pear"), environment(r, cached))
		}
	}
	run := func(tone string) poolapi.ToolRun {
		return poolapi.ToolRun{Tool: tool, Agent: agent(secrets, ""), Args: map[string]json.RawMessage{
			"tone": json.RawMessage(`"` + tone + `"`), "count": json.RawMessage(`2`), "item": json.RawMessage(`"pear"`),
		}}
	}
	return []step{
		{"requirements, secrets", run("loud"), noticed("2 PEARS ON THE WAY!", false)},
		{"again: nothing carried over", run("plain"), noticed("2 pears on the way", true)},
	}
}

// agent is for whom the tools run.
func agent(secrets Secrets, orders string) *poolapi.ToolAgent {
	text, _ := json.Marshal(orders) // a string always can be
	state := json.RawMessage(`{"id":"agent-demo","memory":{"blocks":[{"label":"orders","value":` + string(text) + `}]}}`)
	return &poolapi.ToolAgent{
		ID: "agent-demo", State: state, ReturnState: true, Secrets: map[string]*string{"DEMO_TOKEN": &secrets.Token},
	}
}

// returned checks what a tool returned, and what it printed.
func returned(r poolapi.ToolResult, want map[string]any, printed string) error {
	if r.Error != nil {
		return fmt.Errorf("it failed: %s", r.Text)
	}
	var got map[string]any
	if err := json.Unmarshal(r.FuncReturn, &got); err != nil {
		return fmt.Errorf("it returned no object: %w", err)
	}
	if !reflect.DeepEqual(got, want) {
		return fmt.Errorf("it returned %v instead of %v", got, want)
	}
	if out := strings.Join(r.Stdout, ""); strings.TrimSuffix(out, "\n") != printed {
		return fmt.Errorf("it printed %q instead of %q", out, printed)
	}
	return nil
}

func environment(r poolapi.ToolResult, cached bool) error {
	if r.Sandbox.EnvCached != cached {
		return fmt.Errorf("its environment was there: %t instead of %t", r.Sandbox.EnvCached, cached)
	}
	return nil
}

func refused(r poolapi.ToolResult) error {
	const text = "Error executing function refuse: ValueError: there is no plum"
	if r.Error == nil || r.Error.Kind != api.FunctionException || r.Text != text {
		return fmt.Errorf("it says %q instead of %q", r.Text, text)
	}
	return nil
}

// leaked says that an answer shows a secret, which the tools themselves do not
// return.
func (s Secrets) leaked(r poolapi.ToolResult) error {
	text, err := json.Marshal(r)
	if err == nil && s.In(text) {
		err = errors.New("its answer shows a secret")
	}
	return err
}

// In reports whether the text holds a secret.
func (s Secrets) In(text []byte) bool {
	return bytes.Contains(text, []byte(s.Key)) || bytes.Contains(text, []byte(s.Token))
}

// Below searches all files below the directory, with the pool's logs, its
// database and all that its containers keep. It returns how many there are, and
// the paths of those that show a secret.
func (s Secrets) Below(dir string) (files int, shown []string, err error) {
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // what is at work there makes and removes files
		}
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		files++
		if err == nil && s.In(text) {
			shown = append(shown, path)
		}
		return err
	})
	if err != nil {
		err = fmt.Errorf("look for secrets: %w", err)
	}
	return files, shown, err
}

func packagesOf(t poolapi.Tool) string {
	var all []string
	for _, r := range t.PipRequirements {
		all = append(all, r.Argument(api.LanguagePython))
	}
	for _, r := range t.NpmRequirements {
		all = append(all, r.Argument(api.LanguageNode))
	}
	return strings.Join(all, " ")
}
