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

// Probe finds out what isolation an agent with this configuration would
// reach here, in a throw-away directory, which is in the data directory where
// that exists: disk limits are a matter of its file system. It listens meanwhile as the agent
// does, so that slots have a port to be kept from.
func Probe(ctx context.Context, c Config) (_ sandbox.Report, err error) {
	dir, err := os.MkdirTemp(c.DataDir, "berth-probe-")
	if err != nil {
		dir, err = os.MkdirTemp("", "berth-probe-")
	}
	if err != nil {
		return sandbox.Report{}, fmt.Errorf("probe isolation: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }() // holds only what this process has made
	if err := os.Chmod(dir, 0o711); err != nil {
		return sandbox.Report{}, fmt.Errorf("probe isolation: %w", err)
	}
	c.Listen, c.DataDir, c.Require = "127.0.0.1:0", dir, slots.Requirement{}
	if c.Limits.DiskBytes == 0 && c.Limits.DiskFiles == 0 {
		c.Limits.DiskBytes = 1 << 30 // to see what would hold it
	}
	a := &Agent{config: c, logger: hclog.NewNullLogger()}
	if err := a.listen(ctx); err != nil {
		return sandbox.Report{}, err
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
	if a.host, err = sandbox.Open(ctx, a.hostConfig()); err != nil {
		return sandbox.Report{}, err
	}
	return a.host.Report(), nil
}
