package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"berth/orchestrator/client"
	"berth/orchestrator/poolapi"
	"berth/slots"
)

func (a *app) topCommand() *cobra.Command {
	var once bool
	var interval time.Duration
	cmd := &cobra.Command{
		Use: "top", Short: "Watch the pools and containers",
		Long: `Shows the pools, the containers and their slots, and draws them anew until
Ctrl-C. Each slot is one sign: . free, L leased, X executing, r resetting or
being released, s starting, d draining, ! quarantined.`,
		Args: arguments(0, 0),
	}
	cmd.Flags().BoolVar(&once, "once", false, "print it once, for scripts; so it is where no terminal is printed on")
	cmd.Flags().DurationVar(&interval, "interval", time.Second, "time between two looks")
	cmd.RunE = interruptible(func(ctx context.Context, cmd *cobra.Command, _ []string) error {
		if interval <= 0 {
			return usagef("--interval must be above 0")
		}
		c, err := a.client()
		if err != nil {
			return err
		}
		defer c.Close()
		fd, live := terminal(a.out)
		asJSON := a.asJSON(cmd, true)
		if live && !once && !asJSON {
			return a.watch(ctx, c, fd, interval)
		}
		now, err := look(ctx, c)
		if err != nil {
			return err
		}
		if asJSON {
			return a.printJSON(now)
		}
		return now.write(a.out, 0)
	})
	return cmd
}

// view is the whole of a server at one time.
type view struct {
	URL        string              `json:"url"`
	Pools      []poolapi.Pool      `json:"pools"`
	Containers []poolapi.Container `json:"containers"`
}

func look(ctx context.Context, c *client.Client) (v view, err error) {
	if v.Pools, err = c.Pools(ctx); err != nil {
		return v, err
	}
	v.Containers, err = c.Containers(ctx)
	return v, err
}

// What steers the terminal: plain ANSI, which all have.
const (
	otherScreen = "\x1b[?1049h\x1b[?25l" // and no cursor
	oldScreen   = "\x1b[?25h\x1b[?1049l"
	home        = "\x1b[H"
	clearLine   = "\x1b[K"
	clearBelow  = "\x1b[J"
)

// watch draws until ctx ends. A server that does not answer for a while is
// told on the screen, not an end of it.
func (a *app) watch(ctx context.Context, c *client.Client, fd int, every time.Duration) error {
	now, err := look(ctx, c)
	if err != nil {
		return err
	}
	fmt.Fprint(a.out, otherScreen)
	defer fmt.Fprint(a.out, oldScreen)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		var frame bytes.Buffer
		fmt.Fprintf(&frame, "berth %s   %s\n", a.address(), time.Now().Format(time.TimeOnly))
		if err != nil {
			fmt.Fprintf(&frame, "no news: %v\n", err)
		}
		width, height, sizeErr := term.GetSize(fd)
		if sizeErr != nil {
			width, height = 80, 24
		}
		if err := now.write(&frame, width); err != nil {
			return err
		}
		lines := strings.Split(strings.TrimRight(frame.String(), "\n"), "\n")
		if len(lines) > height-1 {
			lines = lines[:max(1, height-1)]
		}
		if _, err := io.WriteString(a.out, home+strings.Join(lines, clearLine+"\r\n")+clearLine+clearBelow); err != nil {
			return fmt.Errorf("print: %w", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		var next view
		if next, err = look(ctx, c); err == nil {
			now = next
		} else if kind := slots.AsError(err).Kind; kind == slots.KindUnauthorized {
			return err
		} else if errors.Is(err, context.Canceled) {
			return nil
		}
	}
}

// write writes it as text, slots in lines of the width; 0: of any.
func (v view) write(out io.Writer, width int) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "\nPOOL\tSLOTS\tFREE\tLEASED\tQUEUE\tOLDEST\tWAITED p50\tp99")
	for _, p := range v.Pools {
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%s\t%s\t%s\n", plainText(p.Template), p.Slots, p.Available, p.Acquired, p.Queue,
			inSeconds(p.OldestS), inSeconds(p.Waited.P50S), inSeconds(p.Waited.P99S))
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	for _, p := range v.Pools {
		if p.Trouble != nil {
			fmt.Fprintln(out, cut(troubleText(p, time.Now()), width))
		}
	}
	fmt.Fprintln(w, "\nCONTAINER\tPOOL\tSTATE\tUP\tSLOTS")
	for _, c := range v.Containers {
		signs := make([]byte, len(c.Slots))
		for i, s := range c.Slots {
			signs[i] = sign(s)
		}
		row := string(signs)
		if width > 0 {
			row = row[:min(len(row), max(8, width-60))]
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", plainText(c.ID), plainText(c.Template), c.State, until(c.Started, time.Now()), row)
	}
	return w.Flush()
}

// troubleText says why a pool has no more containers; there is a reason.
func troubleText(p poolapi.Pool, now time.Time) string {
	text := plainText(p.Template) + ": no container starts"
	if t := p.Trouble; t.FailedStarts > 0 {
		text = fmt.Sprintf("%s: the last container did not start %s ago, %d in a row, next try in %s",
			plainText(p.Template), until(t.Failed, now), t.FailedStarts, until(now, t.Next))
	}
	return text + ": " + plainText(p.Trouble.Words)
}

// cut is as much of a line as fits the width; 0: all of it.
func cut(line string, width int) string {
	if width > 0 {
		return fmt.Sprintf("%.*s", width, line)
	}
	return line
}

// sign is one slot in one letter, as --help explains them.
func sign(s poolapi.Slot) byte {
	switch {
	case s.Releasing:
		return 'r'
	case s.State == slots.StateQuarantined:
		return '!'
	case s.State == slots.StateExecuting:
		return 'X'
	case s.Lease != nil:
		return 'L'
	}
	switch s.State {
	case slots.StateAvailable:
		return '.'
	case slots.StateResetting:
		return 'r'
	case slots.StateDraining, slots.StateClosed:
		return 'd'
	default:
		return 's'
	}
}

func inSeconds(s float64) string {
	return time.Duration(s * float64(time.Second)).Round(time.Millisecond).String()
}
