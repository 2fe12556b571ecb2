package nomad

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"berth/jobs"
	"berth/orchestrator/backend"
)

// Config says which jobs there are and how Nomad is reached. Zero fields mean
// the defaults.
type Config struct {
	Prefix string         // of the jobs' IDs, before the template's name; default "berth"
	Job    jobs.Template  // what all jobs are made of, as far as no Spec says it
	Pools  []backend.Spec // whose containers are found at the start; their IDs are not looked at
	API    *api.Config    // default: what NOMAD_ADDR, NOMAD_TOKEN, NOMAD_NAMESPACE, NOMAD_REGION, NOMAD_CACERT and so on say
	Name   string         // of this orchestrator, for people; default: the host's and the process's
	Purge  bool           // a Close deregisters the jobs; else their containers go on

	// LockTTL bounds how long nobody scales a job after the orchestrator that did
	// has died; default 33 s. Nomad keeps a lock that is not renewed for twice the
	// TTL that it was asked for, and LockDelay, default 1 s. So it is asked for
	// half of what is left of LockTTL without the delay and a thirtieth, which is
	// for another one to hear of it: 15.45 s, of at least 10 s. Nobody scales a job
	// for longer than that without hearing from Nomad, and a lock takes two
	// requests in four fifths of it.
	LockTTL, LockDelay time.Duration

	Spare    time.Duration // how long what nobody has claimed is kept above what is claimed; default 1 min
	Relist   time.Duration // after which everything is listed again; default 5 min
	Rotate   time.Duration // that agents usually need to learn of a changed secret; they are asked ten times in it whether they have, and on until all have; default 30 s
	Blocked  time.Duration // that a stop waits for the count to be lowered, before the allocation is stopped by itself; default 5 s
	Retry    time.Duration // first pause after a request that failed, doubled up to 50 times as long; default 200 ms
	Look     time.Duration // between two looks at whether a container answers; default 200 ms
	Unplaced time.Duration // that a start waits for Nomad to find room; default 3 s

	Logger hclog.Logger // default: none

	dial func(ctx context.Context, network, address string) (net.Conn, error) // nil: as the system does
}

// Bounds of the TTL that Nomad takes for a lock.
const (
	minLease = 10 * time.Second
	maxLease = 24 * time.Hour
)

// DefaultLockTTL is the default of Config.LockTTL. A shorter one costs an idle
// orchestrator more than a request in 5 s.
const DefaultLockTTL = 33 * time.Second

// lease is the TTL that Nomad is asked for: how long a lock is ours for sure
// after it was renewed.
func (c Config) lease() time.Duration { return (c.LockTTL - c.LockTTL/30 - c.LockDelay) / 2 }

// leastTTL is the least LockTTL that makes a lease that Nomad takes, in whole
// seconds.
func (c Config) leastTTL() time.Duration {
	return ((2*minLease+c.LockDelay)*30/29 + time.Second).Truncate(time.Second)
}

// or returns v, or the default when v is not set.
func or(v, byDefault time.Duration) time.Duration {
	if v <= 0 {
		return byDefault
	}
	return v
}

func (c Config) withDefaults() (Config, error) {
	if c.Prefix == "" {
		c.Prefix = "berth"
	}
	if !jobPattern.MatchString(c.Prefix) {
		return c, fmt.Errorf("prefix of jobs %.80q: want 1 to 22 letters, digits, - and _", c.Prefix)
	}
	if c.API == nil {
		c.API = api.DefaultConfig()
	}
	if c.API.HttpClient != nil {
		return c, errors.New("the client of Nomad is made here")
	}
	if c.Name == "" {
		host, _ := os.Hostname() // a name for people: without it the process is one
		c.Name = fmt.Sprintf("%s/%d", host, os.Getpid())
	}
	c.LockTTL = or(c.LockTTL, DefaultLockTTL)
	c.LockDelay = or(c.LockDelay, time.Second)
	c.Spare = or(c.Spare, time.Minute)
	c.Relist = or(c.Relist, 5*time.Minute)
	c.Rotate = or(c.Rotate, 30*time.Second)
	c.Blocked = or(c.Blocked, 5*time.Second)
	c.Retry = or(c.Retry, 200*time.Millisecond)
	c.Look = or(c.Look, 200*time.Millisecond)
	c.Unplaced = or(c.Unplaced, 3*time.Second)
	if c.Logger == nil {
		c.Logger = hclog.NewNullLogger()
	}
	c.Logger = c.Logger.Named("nomad")
	return c, nil
}

// Template is what the job of the spec's containers is made of, their count
// apart. The error is that it makes no job.
func (c Config) Template(spec backend.Spec) (jobs.Template, error) {
	c, err := c.withDefaults()
	if err != nil {
		return jobs.Template{}, err
	}
	if c.lease() < minLease || c.lease() > maxLease {
		return jobs.Template{}, fmt.Errorf("ttl of the lock %v: want %v to %v, with a delay of %v", c.LockTTL, c.leastTTL(), 2*maxLease, c.LockDelay)
	}
	b := Backend{config: c}
	t := b.template(c.Job, b.jobID(spec.Template), spec, 0, nil)
	_, err = jobs.Sandboxd(t)
	return t, err
}

// jobPattern leaves room for the template's name in a job's ID.
var jobPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,21}$`)

// takes reports whether the agent at the address takes the token.
func takes(ctx context.Context, client *http.Client, url, token string) bool {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/slots", http.NoBody)
	if err != nil {
		return false
	}
	req.Header.Set("Authorization", "Bearer "+token)
	res, err := client.Do(req)
	if err != nil {
		return false
	}
	defer res.Body.Close()
	return res.StatusCode == http.StatusOK
}

// askTimeout bounds one look at a container.
const askTimeout = 2 * time.Second

// answers reports whether the container at the address is ready.
func answers(ctx context.Context, client *http.Client, url string) bool {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/readyz", http.NoBody)
	if err != nil {
		return false
	}
	res, err := client.Do(req)
	if err != nil {
		return false
	}
	defer res.Body.Close()
	_, err = io.Copy(io.Discard, io.LimitReader(res.Body, 1<<16))
	return err == nil && res.StatusCode == http.StatusOK
}
