package httpapi

import (
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"berth/sandboxd/api"
	"berth/slots"
)

// other is the label of every tool that this container does not have.
const other = "other"

// Metrics are a container's, in a registry of their own. Every label has
// values from a fixed set: names of tools, outcomes and kinds of slots,
// templates of routes. It is a keeper.Observer, so it is made before the
// keeper, which is made before the Server.
type Metrics struct {
	registry   *prometheus.Registry
	tools      []string // sorted
	requests   *prometheus.CounterVec
	latency    *prometheus.HistogramVec
	executions *prometheus.CounterVec
	queue      prometheus.Histogram
	spawn      prometheus.Histogram
	duration   *prometheus.HistogramVec
	resets     *prometheus.HistogramVec
	builds     *prometheus.HistogramVec
	evicted    prometheus.Counter
}

// seconds are the upper bounds of every histogram, from half a millisecond to
// the longest calls.
var seconds = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800}

// NewMetrics makes the metrics of a container that has the tools.
func NewMetrics(tools []string) *Metrics {
	histogram := func(name, text string) prometheus.HistogramOpts {
		return prometheus.HistogramOpts{Name: name, Help: text, Buckets: seconds}
	}
	counter := func(name, text string) prometheus.CounterOpts { return prometheus.CounterOpts{Name: name, Help: text} }
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		tools:    slices.Sorted(slices.Values(tools)),
		requests: prometheus.NewCounterVec(
			counter("berth_http_requests_total", "Requests answered, by route and class of status."), []string{"method", "route", "class"}),
		latency: prometheus.NewHistogramVec(
			histogram("berth_http_request_seconds", "Time from a request's headers to the end of its answer."), []string{"method", "route"}),
		executions: prometheus.NewCounterVec(
			counter("berth_executions_total", "Executions that ended, by tool and by outcome or error kind."), []string{"tool", "outcome"}),
		queue: prometheus.NewHistogram(
			histogram("berth_execution_queue_seconds", "Time that executions waited for their slot.")),
		spawn: prometheus.NewHistogram(
			histogram("berth_execution_spawn_seconds", "Time from a holder's receipt of a command to its process.")),
		duration: prometheus.NewHistogramVec(
			histogram("berth_execution_duration_seconds", "Run time of processes, by tool."), []string{"tool"}),
		resets: prometheus.NewHistogramVec(
			histogram("berth_reset_seconds", "Time of resets, by whether the slot was proven clean."), []string{"clean"}),
		builds: prometheus.NewHistogramVec(
			histogram("berth_environment_build_seconds", "Time of builds of environments, by language and by \"ok\" or why not."), []string{"language", "outcome"}),
		evicted: prometheus.NewCounter(
			counter("berth_environments_evicted_total", "Environments that had to go for others.")),
	}
	m.registry.MustRegister(m.requests, m.latency, m.executions, m.queue, m.spawn, m.duration, m.resets, m.builds, m.evicted,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// watch adds what is read from others when metrics are asked for.
func (m *Metrics) watch(from Slots, conns *connTable) {
	m.registry.MustRegister(newSlotCollector(from), newConnCollector(conns))
}

// ExecutionEnded counts a call that was answered. It keeps nothing of r.
func (m *Metrics) ExecutionEnded(tool string, r *api.Result) {
	if _, known := slices.BinarySearch(m.tools, tool); !known {
		tool = other
	}
	outcome := map[bool]string{true: "ok", false: "failed"}[r.Success]
	switch p := r.Metadata.Receipt; {
	case r.Metadata.ErrorKind != "":
		outcome = string(r.Metadata.ErrorKind)
	case p != nil:
		outcome = string(p.Outcome)
		m.spawn.Observe(p.SpawnMS / 1e3)
		m.duration.WithLabelValues(tool).Observe(p.DurationMS / 1e3)
	}
	m.executions.WithLabelValues(tool, outcome).Inc()
	m.queue.Observe(r.Metadata.QueueMS / 1e3)
}

// ResetEnded counts a reset.
func (m *Metrics) ResetEnded(clean bool, took time.Duration) {
	m.resets.WithLabelValues(strconv.FormatBool(clean)).Observe(took.Seconds())
}

// EnvironmentBuilt counts a build that ended.
func (m *Metrics) EnvironmentBuilt(language, outcome string, took time.Duration) {
	m.builds.WithLabelValues(language, outcome).Observe(took.Seconds())
}

// EnvironmentEvicted counts an environment that had to go for others.
func (m *Metrics) EnvironmentEvicted() { m.evicted.Inc() }

// watchEnvironments adds how many there are and what they take.
func (m *Metrics) watchEnvironments(from Environments) {
	gauge := func(name, text string, read func(api.Environments) float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: text}, func() float64 { return read(from.List()) })
	}
	m.registry.MustRegister(
		gauge("berth_environments", "Environments that are there or are being built.", func(l api.Environments) float64 { return float64(len(l.Environments)) }),
		gauge("berth_environments_bytes", "Disk space of all environments.", func(l api.Environments) float64 { return float64(l.SizeBytes) }))
}

// watchJournal adds whether executions are put on record.
func (m *Metrics) watchJournal(from Registry) {
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "berth_journal_failing", Help: "1 when the last record of an execution could not be written, 0 when it was.",
	}, func() float64 {
		if from.JournalErr() != nil {
			return 1
		}
		return 0
	}))
}

// routeMetrics are one route's, looked up once.
type routeMetrics struct {
	classes [6]prometheus.Counter // by status / 100
	latency prometheus.Observer
}

func (m *Metrics) route(method, template string) *routeMetrics {
	r := &routeMetrics{latency: m.latency.WithLabelValues(method, template)}
	for i := 1; i < len(r.classes); i++ {
		r.classes[i] = m.requests.WithLabelValues(method, template, strconv.Itoa(i)+"xx")
	}
	return r
}

func (r *routeMetrics) observe(code int, took time.Duration) {
	if class := code / 100; class >= 1 && class < len(r.classes) {
		r.classes[class].Inc()
	}
	r.latency.Observe(took.Seconds())
}

// slotCollector reads the slots' states when metrics are gathered.
type slotCollector struct {
	from                               Slots
	states, queued, leased, level, age *prometheus.Desc
}

func newSlotCollector(from Slots) *slotCollector {
	return &slotCollector{
		from:   from,
		states: prometheus.NewDesc("berth_slots", "Slots by state.", []string{"state"}, nil),
		queued: prometheus.NewDesc("berth_queued_calls", "Calls that wait for their slot.", nil, nil),
		leased: prometheus.NewDesc("berth_leased_slots", "Slots that have a lease.", nil, nil),
		level:  prometheus.NewDesc("berth_isolation_level", "Position of the isolation level in force on the ladder.", []string{"level"}, nil),
		age:    prometheus.NewDesc("berth_uptime_seconds", "Time since the container started.", []string{"version"}, nil),
	}
}

// Describe names the collector's metrics.
func (c *slotCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.states, c.queued, c.leased, c.level, c.age} {
		out <- d
	}
}

// Collect counts the slots.
func (c *slotCollector) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	// A state that no slot is in reads 0 and does not vanish.
	counts := map[slots.State]int{}
	for _, s := range slots.States() {
		counts[s] = 0
	}
	for _, s := range c.from.Slots() {
		counts[s.State]++
	}
	for state, n := range counts {
		gauge(c.states, float64(n), string(state))
	}
	h := c.from.Health()
	gauge(c.queued, float64(h.Queued))
	gauge(c.leased, float64(h.Leased))
	gauge(c.level, float64(h.Isolation.Level), h.Isolation.Level.String())
	gauge(c.age, h.UptimeS, h.Version)
}

// connCollector reads a connTable when metrics are gathered.
type connCollector struct {
	conns         *connTable
	open, dropped *prometheus.Desc
}

func newConnCollector(conns *connTable) *connCollector {
	return &connCollector{
		conns:   conns,
		open:    prometheus.NewDesc("berth_http_connections", "Open connections.", nil, nil),
		dropped: prometheus.NewDesc("berth_http_connections_dropped_total", "Connections closed over the cap: waiting ones evicted, new ones refused.", []string{"how"}, nil),
	}
}

// Describe names the collector's metrics.
func (c *connCollector) Describe(out chan<- *prometheus.Desc) {
	out <- c.open
	out <- c.dropped
}

// Collect counts the connections.
func (c *connCollector) Collect(out chan<- prometheus.Metric) {
	out <- prometheus.MustNewConstMetric(c.open, prometheus.GaugeValue, float64(c.conns.count()))
	out <- prometheus.MustNewConstMetric(c.dropped, prometheus.CounterValue, float64(c.conns.evicted.Load()), "evicted")
	out <- prometheus.MustNewConstMetric(c.dropped, prometheus.CounterValue, float64(c.conns.refused.Load()), "refused")
}
