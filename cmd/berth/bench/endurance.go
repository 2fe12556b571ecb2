package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"strconv"
	"strings"
	"time"

	"berth/cmd/berth/container"
)

const (
	settleTimeout  = 10 * time.Second
	settleInterval = 100 * time.Millisecond
	settleLooks    = 5 // that must show the same
	finalLooks     = 5 // a leak is in all of them, what is about to end is not
)

// rest is a container that does nothing, in numbers.
type rest struct {
	zombies     int
	descriptors map[int]int // by process: the agent, its spawner, the holders
	hidden      int         // processes whose descriptors are not for us to see
	goroutines  int
}

// measureEndurance runs many executions, 32 at once, and looks what is left
// of them.
func measureEndurance(ctx context.Context, b *bench) (finding, error) {
	run := func(n int) (float64, error) {
		return atOnce(ctx, b.slots, n, func(ctx context.Context, worker int) error {
			_, err := b.bash(ctx, worker, "true")
			return err
		})
	}
	// What is opened on first use is no leak.
	if _, err := run(4 * b.slots); err != nil {
		return finding{}, err
	}
	before, err := b.atRest(ctx)
	if err != nil {
		return finding{}, err
	}
	rate, err := run(b.Executions)
	if err != nil {
		return finding{}, err
	}
	var after rest
	for range finalLooks {
		if after, err = b.atRest(ctx); err != nil {
			return finding{}, err
		}
		if after.zombies == 0 && leaked(before, after) == 0 && after.goroutines <= before.goroutines {
			break
		}
	}
	detail := fmt.Sprintf("%d executions, %.0f/s; %d processes", b.Executions, rate, len(after.descriptors)+after.hidden)
	if after.hidden > 0 {
		detail += fmt.Sprintf(", of which %d hide their descriptors from everybody but root", after.hidden)
	}
	return finding{
		values: []float64{float64(after.zombies), float64(leaked(before, after)), float64(max(0, after.goroutines-before.goroutines))},
		detail: detail,
	}, nil
}

// leaked counts the descriptors that processes have more than before. What
// another has less is no excuse.
func leaked(before, after rest) int {
	n := 0
	for pid, count := range after.descriptors {
		n += max(0, count-before.descriptors[pid])
	}
	return n
}

// atRest closes our connections, waits until the container does nothing any
// more, and counts.
func (b *bench) atRest(ctx context.Context) (rest, error) {
	if err := b.settle(ctx); err != nil {
		return rest{}, err
	}
	table, err := readProcesses()
	if err != nil {
		return rest{}, err
	}
	family := table.descendants(b.running.PID)
	gauges, err := gauges(ctx, b.running, goroutinesMetric, descriptorsMetric)
	if err != nil {
		return rest{}, err
	}
	r := rest{
		zombies: table.zombies(family), goroutines: gauges[goroutinesMetric],
		descriptors: map[int]int{b.running.PID: gauges[descriptorsMetric]},
	}
	for _, pid := range family {
		switch n, err := countDescriptors(pid); {
		case errors.Is(err, fs.ErrPermission):
			r.hidden++
		case err != nil:
			return rest{}, err
		default:
			r.descriptors[pid] = n
		}
	}
	return r, nil
}

// settle waits until the container shows the same for a while: no process
// comes or goes, none is a zombie, no file is opened or closed. It gives up
// waiting, without an error, after a time: what moves then is for the caller
// to see.
func (b *bench) settle(ctx context.Context) error {
	b.agent.Close()
	http.DefaultClient.CloseIdleConnections()
	deadline := time.Now().Add(settleTimeout)
	tick := time.NewTicker(settleInterval)
	defer tick.Stop()
	last, same := "", 0
	for same < settleLooks && time.Now().Before(deadline) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		now, err := b.look()
		if err != nil {
			return err
		}
		if same++; now != last {
			last, same = now, 0
		}
	}
	return nil
}

// look is a text that differs when the container does something.
func (b *bench) look() (string, error) {
	table, err := readProcesses()
	if err != nil {
		return "", err
	}
	family := table.descendants(b.running.PID)
	open, err := countDescriptors(b.running.PID)
	if err != nil {
		open = -1 // one can do without
	}
	zombies := table.zombies(family)
	if zombies > 0 {
		return strconv.FormatInt(time.Now().UnixNano(), 10), nil
	}
	return fmt.Sprint(family, open), nil
}

// What a server says of itself at rest.
const (
	goroutinesMetric  = "go_goroutines"
	descriptorsMetric = "process_open_fds"
)

// gauges asks a server for its metrics that are whole numbers. The wanted ones
// must be among them.
func gauges(ctx context.Context, of *container.Container, wanted ...string) (map[string]int, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, of.URL+"/metrics", nil)
	if err != nil {
		return nil, fmt.Errorf("ask for metrics: %w", err)
	}
	request.Header.Set("Authorization", "Bearer "+of.Token)
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, fmt.Errorf("ask for metrics: %w", err)
	}
	defer answer.Body.Close()
	gauges := map[string]int{}
	lines := bufio.NewScanner(answer.Body)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), " ")
		if n, err := strconv.Atoi(value); err == nil {
			gauges[name] = n
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read metrics: %w", err)
	}
	for _, name := range wanted {
		if _, there := gauges[name]; !there {
			return nil, fmt.Errorf("ask for metrics: the server answered %s without %s", answer.Status, name)
		}
	}
	return gauges, nil
}
