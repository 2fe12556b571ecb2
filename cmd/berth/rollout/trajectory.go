package rollout

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Result is how one trajectory went.
type Result struct {
	Number     int // from 1
	Program    string
	Slot       string
	Executions int
	Latencies  []time.Duration // of each POST /execute
	Took       time.Duration
	Diff       string // the artifact: what the trajectory changed
	Err        error  // nil when every step went as it should
}

// trajectory is one rollout under way.
type trajectory struct {
	place   place
	program Program
	result  Result
}

// run takes the steps in order, up to the first that goes wrong.
func (t *trajectory) run(ctx context.Context) {
	start := time.Now()
	for _, step := range []struct {
		name string
		take func(context.Context) error
	}{
		{"reset the slot", t.reset},
		{"upload the program", t.upload},
		{"see its tests fail", t.seeItFail},
		{"read it", t.read},
		{"edit it", t.edit},
		{"see its tests pass", t.seeItPass},
		{"write the diff", t.writeDiff},
		{"fetch the diff", t.fetchDiff},
		{"give the slot back empty", t.giveBack},
	} {
		if err := step.take(ctx); err != nil {
			t.result.Err = fmt.Errorf("%s: %w", step.name, err)
			break
		}
	}
	t.result.Took = time.Since(start)
}

func (t *trajectory) reset(ctx context.Context) error { return t.place.reset(ctx) }

// upload writes the files in one batch.
func (t *trajectory) upload(ctx context.Context) error {
	var calls []Call
	for _, f := range []struct{ path, content string }{
		{"program.sh", t.program.Source},
		{"test.sh", t.program.Test},
		{"cases.txt", t.program.Cases},
		{"edit.sed", t.program.Edit},
	} {
		calls = append(calls, NewCall(t.result.Slot, "write_file", map[string]any{"path": f.path, "content": f.content}))
	}
	t.result.Executions += len(calls)
	answers, err := t.place.batch(ctx, calls)
	if err != nil {
		return err
	}
	for i, a := range answers {
		path, content := calls[i].Args["path"].(string), calls[i].Args["content"].(string)
		want := fmt.Sprintf("Successfully wrote %d bytes to %s", len(content), path)
		if !a.Success || a.Output != want {
			return fmt.Errorf("want %q, got %s", want, describe(a))
		}
	}
	return nil
}

func (t *trajectory) seeItFail(ctx context.Context) error {
	a, err := t.bash(ctx, "bash test.sh")
	if err != nil {
		return err
	}
	code, _ := a.Metadata["exit_code"].(float64)
	if a.Success || code != 1 || a.Error != "Exit code: 1" || !strings.Contains(a.Output, "FAIL: ") {
		return fmt.Errorf("want exit code 1 and a failed case, got %s", describe(a))
	}
	return nil
}

func (t *trajectory) read(ctx context.Context) error {
	a, err := t.execute(ctx, "read_file", map[string]any{"path": "program.sh"})
	if err != nil {
		return err
	}
	if !a.Success || a.Output != t.program.Source {
		return fmt.Errorf("want the program as it was written, got %s", describe(a))
	}
	return nil
}

func (t *trajectory) edit(ctx context.Context) error {
	return t.succeed(ctx, "sed -i.orig -f edit.sed program.sh", "")
}

func (t *trajectory) seeItPass(ctx context.Context) error {
	return t.succeed(ctx, "bash test.sh", ", 0 failures")
}

// writeDiff relies on diff's exit status 1, which says that the files differ.
func (t *trajectory) writeDiff(ctx context.Context) error {
	return t.succeed(ctx, "diff -u program.sh.orig program.sh > mend.diff; test $? -eq 1", "")
}

func (t *trajectory) fetchDiff(ctx context.Context) error {
	a, err := t.place.artifact(ctx, "mend.diff")
	if err != nil {
		return err
	}
	sum := sha256.Sum256([]byte(a.Content))
	switch {
	case !a.Success:
		return errors.New(a.Error)
	case a.Truncated || a.Bytes != int64(len(a.Content)):
		return fmt.Errorf("got %d of %d bytes, truncated %t", len(a.Content), a.Bytes, a.Truncated)
	case a.SHA256 != hex.EncodeToString(sum[:]):
		return fmt.Errorf("sha256 %s is not that of the content", a.SHA256)
	case !strings.Contains(a.Content, "\n-") || !strings.Contains(a.Content, "\n+"):
		return fmt.Errorf("not a diff: %.200q", a.Content)
	}
	t.result.Diff = a.Content
	return nil
}

// giveBack resets the slot and sees that nothing of the trajectory is left.
func (t *trajectory) giveBack(ctx context.Context) error {
	if err := t.reset(ctx); err != nil {
		return err
	}
	a, err := t.execute(ctx, "read_file", map[string]any{"path": "program.sh"})
	if err != nil {
		return err
	}
	if want := "File not found: program.sh"; a.Success || a.Error != want {
		return fmt.Errorf("want %q, got %s", want, describe(a))
	}
	return nil
}

// succeed runs a command that must succeed and end its output with a text.
func (t *trajectory) succeed(ctx context.Context, command, ending string) error {
	a, err := t.bash(ctx, command)
	if err != nil {
		return err
	}
	if !a.Success || !strings.HasSuffix(a.Output, ending) {
		return fmt.Errorf("want success and an output that ends in %q, got %s", ending, describe(a))
	}
	return nil
}

func (t *trajectory) bash(ctx context.Context, command string) (Answer, error) {
	return t.execute(ctx, "bash", map[string]any{"command": command})
}

func (t *trajectory) execute(ctx context.Context, tool string, args map[string]any) (Answer, error) {
	a, took, err := t.place.execute(ctx, NewCall(t.result.Slot, tool, args))
	t.result.Executions++
	t.result.Latencies = append(t.result.Latencies, took)
	return a, err
}

// describe shows an answer in one line.
func describe(a Answer) string {
	return fmt.Sprintf("success %t, exit code %v, error %q, output %.300q", a.Success, a.Metadata["exit_code"], a.Error, a.Output)
}
