package sandboxd

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"berth/slots"
	"berth/slots/sandbox"
)

// Report is what a probe found, held against what the configuration requires.
type Report struct {
	sandbox.Report
	Required slots.Requirement `json:"required"`
	// Refusal is what an agent with this configuration would end with: axes,
	// what was wanted and got, and what mends it. "" where it would start.
	Refusal string `json:"refusal,omitempty"`
}

// Probe finds out what isolation an agent with this configuration would
// reach here, in a throw-away directory, which is in the data directory where
// that exists: disk limits are a matter of its file system. It listens
// meanwhile as the agent does, so that slots have a port to be kept from. The
// error is a *sandbox.UnmetError when there would be nothing to report.
func Probe(ctx context.Context, c Config) (_ Report, err error) {
	dir, err := os.MkdirTemp(c.DataDir, "berth-probe-")
	if err != nil {
		dir, err = os.MkdirTemp("", "berth-probe-")
	}
	if err != nil {
		return Report{}, fmt.Errorf("probe isolation: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }() // holds only what this process has made
	if err := os.Chmod(dir, 0o711); err != nil {
		return Report{}, fmt.Errorf("probe isolation: %w", err)
	}
	c.Listen, c.DataDir = "127.0.0.1:0", dir
	if c.Limits.DiskBytes == 0 && c.Limits.DiskFiles == 0 {
		c.Limits.DiskBytes = 1 << 30 // to see what would hold it
	}
	a := &Agent{config: c, logger: hclog.NewNullLogger()}
	if err := a.listen(ctx); err != nil {
		return Report{}, err
	}
	answering := &http.Server{Handler: http.NotFoundHandler(), ReadHeaderTimeout: time.Second}
	var serving sync.WaitGroup
	serving.Go(func() {
		answering.Serve(a.guard) //nolint:errcheck // it ends when it is closed
	})
	defer func() {
		err = errors.Join(err, answering.Close(), a.close())
		serving.Wait()
	}()
	host := a.hostConfig()
	required := host.Require
	host.Require = slots.Requirement{} // what is less is reported as well
	if a.host, err = sandbox.Open(ctx, host); err != nil {
		return Report{}, err
	}
	r := Report{Report: a.host.Report(), Required: required}
	if unmet := required.Unmet(r.Isolation); len(unmet) > 0 {
		refusal := &sandbox.UnmetError{Required: required, Got: r.Isolation, Shortfall: unmet, Attempts: r.Attempts}
		r.Refusal = refusal.Error()
	}
	return r, nil
}
