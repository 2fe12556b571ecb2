package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"berth/orchestrator/client"
	"berth/slots"
)

func (a *app) doctorCommand() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use: "doctor", Short: "Say what is wrong here, and what mends it",
		Long: `Looks at this machine and at the server: the programs, the isolation that the
machine allows, the disk, the address, the token, the slots. What would keep
"berth up" or a command from working fails; the exit status is 1 then.`,
		Args: arguments(0, 0),
	}
	cmd.Flags().StringVar(&dir, "data-dir", "", "directory of \"berth up\" to look at; the usual one without it")
	cmd.RunE = interruptible(func(ctx context.Context, cmd *cobra.Command, _ []string) error {
		findings := a.examine(ctx, cmp.Or(dir, a.stateDir()))
		failed := 0
		for _, f := range findings {
			if f.Verdict == verdictFail {
				failed++
			}
		}
		if a.asJSON(cmd, true) {
			if err := a.printJSON(map[string]any{"ok": failed == 0, "findings": findings}); err != nil {
				return err
			}
		} else {
			for _, f := range findings {
				fmt.Fprintf(a.out, "%-5s %-13s %s\n", f.Verdict, f.What, f.Found)
				if f.Mend != "" {
					fmt.Fprintf(a.out, "      %-13s mend: %s\n", "", f.Mend)
				}
			}
		}
		if failed > 0 {
			return fmt.Errorf("%d of %d findings are wrong: each says what mends it", failed, len(findings))
		}
		return nil
	})
	return cmd
}

// The verdicts of a finding.
const (
	verdictOK   = "ok"
	verdictWarn = "warn"
	verdictFail = "FAIL"
)

// finding is one thing that was looked at.
type finding struct {
	What    string `json:"what"`
	Verdict string `json:"verdict"`
	Found   string `json:"found"`
	Mend    string `json:"mend,omitempty"`
}

func (a *app) examine(ctx context.Context, dir string) []finding {
	agent, agentFinding := lookProgram(ctx, "sandboxd")
	_, serverFinding := lookProgram(ctx, "orchestrator")
	findings := []finding{agentFinding, serverFinding}
	if agent != "" {
		findings = append(findings, lookIsolation(ctx, agent)...)
	}
	findings = append(findings, lookDisk(dir))
	return append(findings, a.lookServer(ctx)...)
}

// program finds a program of Berth's: beside this one, else in PATH.
func program(name string) (string, error) {
	if beside := besideMe(name); filepath.IsAbs(beside) {
		if st, err := os.Stat(beside); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			return beside, nil
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", configf("%s is neither beside berth nor in PATH: build it by \"make build\" and keep the programs together", name)
	}
	return filepath.Abs(path)
}

// lookWithin bounds each look that starts a program or asks a server.
const lookWithin = 60 * time.Second

func lookProgram(ctx context.Context, name string) (path string, f finding) {
	path, err := program(name)
	if err != nil {
		return "", finding{name, verdictFail, "not found", "make build, and keep sandboxd and orchestrator beside berth or in PATH"}
	}
	ctx, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, "version").Output()
	if err != nil {
		return "", finding{name, verdictFail, fmt.Sprintf("%s does not run: %v", path, err), "make build on this machine"}
	}
	f = finding{name, verdictOK, fmt.Sprintf("%s, version %s", path, strings.TrimSpace(string(out))), ""}
	if have := strings.TrimSpace(string(out)); have != version {
		f.Verdict, f.Mend = verdictWarn, fmt.Sprintf("berth is version %s: build all by \"make build\"", version)
	}
	return path, f
}

// probed is what of "sandboxd probe --json" matters here.
type probed struct {
	Isolation slots.Isolation `json:"isolation"`
	Cgroup    string          `json:"cgroup"`
	Attempts  []struct {
		Mechanism string `json:"mechanism"`
		Error     string `json:"error"`
		Mend      string `json:"mend"`
	} `json:"attempts"`
}

func lookIsolation(ctx context.Context, agent string) []finding {
	p, err := probe(ctx, agent)
	if err != nil {
		return []finding{{"isolation", verdictFail, err.Error(), "run \"sandboxd probe\" and read what it says"}}
	}
	f := finding{"isolation", verdictOK, "level " + p.Isolation.Level.String(), ""}
	for _, attempt := range p.Attempts {
		if attempt.Mend != "" {
			f.Mend = fmt.Sprintf("for more (%s): %s", attempt.Mechanism, attempt.Mend)
			break
		}
	}
	switch {
	case p.Isolation.Level < slots.LevelLandlock:
		f.Verdict = verdictFail
		f.Mend = cmp.Or(f.Mend, "a kernel with Landlock, or root, or \"berth up --isolation-require none\" for what needs no isolation")
	case p.Isolation.Level < slots.LevelNS:
		f.Verdict = verdictWarn
	}
	groups := finding{"cgroups", verdictOK, p.Cgroup, ""}
	if p.Cgroup == "" || strings.HasPrefix(p.Cgroup, "none") {
		groups.Verdict, groups.Found = verdictWarn, cmp.Or(p.Cgroup, "none")
		groups.Mend = "without them slots have no limit of memory and CPU: run as root, or in a cgroup that this user may write"
	}
	return []finding{f, groups}
}

// probe asks sandboxd what isolation this machine allows.
func probe(ctx context.Context, agent string) (p probed, err error) {
	ctx, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	cmd := exec.CommandContext(ctx, agent, "probe", "--json")
	out, err := cmd.Output()
	if err != nil {
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			err = fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
		}
		return p, fmt.Errorf("probe this machine: %w", err)
	}
	if err := json.Unmarshal(out, &p); err != nil {
		return p, fmt.Errorf("probe this machine: read its answer: %w", err)
	}
	return p, nil
}

// leastDisk is how much room a pool should find, in bytes.
const leastDisk = 1 << 30

// lookDisk looks at the file system that the directory is, or would be, on.
func lookDisk(dir string) finding {
	there := dir
	for {
		if _, err := os.Stat(there); err == nil || there == filepath.Dir(there) {
			break
		}
		there = filepath.Dir(there)
	}
	var st syscall.Statfs_t
	if err := syscall.Statfs(there, &st); err != nil {
		return finding{"disk", verdictFail, fmt.Sprintf("%s: %v", there, err), "name another directory by --data-dir"}
	}
	free := int64(st.Bavail) * st.Bsize //nolint:gosec // no file system has so many bytes
	f := finding{"disk", verdictOK, fmt.Sprintf("%s free for %s", byteText(free), dir), ""}
	if free < leastDisk {
		f.Verdict, f.Mend = verdictFail, "make room, or name a directory of another file system by --data-dir"
		return f
	}
	if err := syscall.Access(there, 2); err != nil {
		f.Verdict, f.Found = verdictFail, fmt.Sprintf("%s cannot be written to", there)
		f.Mend = "name another directory by --data-dir"
	}
	return f
}

func (a *app) lookServer(ctx context.Context) []finding {
	named := a.url != "" || a.getenv("BERTH_URL") != ""
	c, err := a.client()
	if err != nil {
		return []finding{{"server", verdictFail, err.Error(), "mend the address or the token's file"}}
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	if err := c.Ready(ctx); err != nil {
		return []finding{a.lookSilence(ctx, err, named)}
	}
	found := []finding{{"server", verdictOK, a.address() + " is ready", ""}}
	pools, err := c.Pools(ctx)
	if err != nil {
		status, mend := a.mend(err)
		f := finding{"token", verdictFail, err.Error(), mend}
		if status != exitConfig {
			f.What = "pools"
		}
		return append(found, f)
	}
	found = append(found, finding{"token", verdictOK, "the server takes it, or wants none", ""})
	all, free := 0, 0
	for _, p := range pools {
		all, free = all+p.Slots, free+p.Available
		if p.Trouble != nil {
			found = append(found, finding{"pool", verdictWarn, troubleText(p, time.Now()), "what its words name; the pool tries again by itself"})
		}
	}
	f := finding{"slots", verdictOK, fmt.Sprintf("%d of %d are free", free, all), ""}
	switch {
	case all == 0:
		f.Verdict, f.Mend = verdictFail, "\"berth top\" or the server's log says why no container runs"
	case free == 0:
		f.Verdict, f.Mend = verdictWarn, "\"berth slots\" shows who holds them, \"berth release\" gives them back"
	}
	return append(found, f)
}

// lookSilence says what stands where no server is ready.
func (a *app) lookSilence(ctx context.Context, err error, named bool) finding {
	if !client.Unreachable(err) {
		return finding{"server", verdictFail, fmt.Sprintf("%s is not ready: %v", a.address(), err), "wait, or read the server's log"}
	}
	f := finding{"server", verdictWarn, "none at " + a.address(), "start one by \"berth up\", or name one by --url or BERTH_URL"}
	if named {
		f.Verdict = verdictFail
	}
	// Somebody else may sit there.
	host := strings.TrimPrefix(strings.TrimPrefix(a.address(), "http://"), "https://")
	conn, dialErr := new(net.Dialer).DialContext(ctx, "tcp", host)
	if dialErr == nil {
		conn.Close()
		f.Verdict, f.Found = verdictFail, a.address()+" is taken by a program that is no server of ours"
		f.Mend = "end it, or choose another address by \"berth up --listen\" and BERTH_URL"
	}
	return f
}

// dashboard is the address at which the server shows itself to a browser; ""
// where it does not.
func dashboard(ctx context.Context, address string) string {
	page := address + "/"
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, page, nil)
	if err != nil {
		return ""
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return ""
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK || !strings.HasPrefix(answer.Header.Get("Content-Type"), "text/html") {
		return ""
	}
	return page
}
