package httpapi

import (
	"strconv"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"berth/orchestrator/calls"
	"berth/orchestrator/pool"
	"berth/slots"
)

// Metrics are an orchestrator's, in a registry of their own. Every label has
// values from a fixed set: templates, kinds of errors, routes. It is a
// pool.Observer, so it is made before the pools, which are made before the
// Server.
type Metrics struct {
	registry *prometheus.Registry
	requests *prometheus.CounterVec
	latency  *prometheus.HistogramVec
	acquired *prometheus.CounterVec
	waited   *prometheus.HistogramVec
	released *prometheus.CounterVec
	reset    *prometheus.HistogramVec
	ended    *prometheus.CounterVec
	scaled   *prometheus.CounterVec
	started  *prometheus.CounterVec
}

// bounds are the upper bounds of every histogram, in seconds.
var bounds = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800}

// NewMetrics makes the metrics.
func NewMetrics() *Metrics {
	histogram := func(name, text string, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: text, Buckets: bounds}, labels)
	}
	counter := func(name, text string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: text}, labels)
	}
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		requests: counter("berth_orchestrator_http_requests_total", "Requests answered, by route and class of status.", "method", "route", "class"),
		latency:  histogram("berth_orchestrator_http_request_seconds", "Time from a request's headers to the end of its answer.", "method", "route"),
		acquired: counter("berth_pool_acquires_total", "Acquires that ended, by result.", "template", "result"),
		waited:   histogram("berth_pool_acquire_seconds", "Time until an acquire had its lease.", "template"),
		released: counter("berth_pool_releases_total", "Releases that ended, by result.", "template", "result"),
		reset:    histogram("berth_pool_release_seconds", "Time of releases, with their resets.", "template"),
		ended:    counter("berth_pool_leases_ended_total", "Leases that ended without being released, by reason.", "template", "reason"),
		scaled:   counter("berth_pool_containers_scaled_total", "Containers that a decision started or drained.", "template", "how"),
		started:  counter("berth_pool_starts_total", "Starts of containers that ended, by result.", "template", "result"),
	}
	m.registry.MustRegister(m.requests, m.latency, m.acquired, m.waited, m.released, m.reset, m.ended, m.scaled, m.started,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// result is an error as a label.
func result(err error) string {
	if err == nil {
		return "ok"
	}
	return string(slots.AsError(err).Kind)
}

// Acquired counts an acquire.
func (m *Metrics) Acquired(template string, waited time.Duration, err error) {
	m.acquired.WithLabelValues(template, result(err)).Inc()
	if err == nil {
		m.waited.WithLabelValues(template).Observe(waited.Seconds())
	}
}

// Released counts a release.
func (m *Metrics) Released(template string, took time.Duration, err error) {
	m.released.WithLabelValues(template, result(err)).Inc()
	m.reset.WithLabelValues(template).Observe(took.Seconds())
}

// Ended counts a lease that was not released.
func (m *Metrics) Ended(template string, kind slots.Kind) {
	m.ended.WithLabelValues(template, string(kind)).Inc()
}

// Scaled counts containers.
func (m *Metrics) Scaled(template string, start, drain int) {
	m.scaled.WithLabelValues(template, "started").Add(float64(start))
	m.scaled.WithLabelValues(template, "drained").Add(float64(drain))
}

// Started counts a start.
func (m *Metrics) Started(template string, err error) {
	m.started.WithLabelValues(template, result(err)).Inc()
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

// collector reads pools and dispatchers when metrics are gathered.
type collector struct {
	pools                               *pool.Pools
	calls                               *calls.Carrier
	states, leased, queue, containers   *prometheus.Desc
	scales, failed                      *prometheus.Desc
	requests, sent, waiting, dispatched *prometheus.Desc
}

func newCollector(pools *pool.Pools, of *calls.Carrier) *collector {
	desc := func(name, text string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, text, labels, nil)
	}
	return &collector{
		pools: pools, calls: of,
		states:     desc("berth_pool_slots", "Slots by state.", "template", "state"),
		leased:     desc("berth_pool_leased_slots", "Slots that have a lease.", "template"),
		queue:      desc("berth_pool_queue", "Acquires that wait for a free slot.", "template"),
		containers: desc("berth_pool_containers", "Containers by state.", "template", "state"),
		scales:     desc("berth_pool_scales", "1 if it is on this orchestrator to start and stop containers, 0 if another one does.", "template"),
		failed:     desc("berth_pool_failed_starts", "Starts of containers in a row that have failed, up to the last.", "template"),
		requests:   desc("berth_dispatch_requests", "Requests that carried calls to the containers that are there."),
		dispatched: desc("berth_dispatch_calls", "Calls that those requests carried."),
		sent:       desc("berth_dispatch_sent", "Calls that were sent and have no answer."),
		waiting:    desc("berth_dispatch_waiting", "Calls that wait to be sent."),
	}
}

// Describe names the collector's metrics.
func (k *collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{k.states, k.leased, k.queue, k.containers, k.scales, k.failed, k.requests, k.sent, k.waiting, k.dispatched} {
		out <- d
	}
}

// Collect reads the numbers.
func (k *collector) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	for _, p := range k.pools.Stats() {
		for _, state := range append(slots.States(), pool.StateLeased) { // one that no slot is in reads 0
			gauge(k.states, float64(p.ByState[state]), p.Template, string(state))
		}
		gauge(k.leased, float64(p.Acquired), p.Template)
		gauge(k.queue, float64(p.Queue), p.Template)
		scales := 0.0
		if p.Duty.Held {
			scales = 1
		}
		gauge(k.scales, scales, p.Template)
		gauge(k.failed, float64(p.Trouble.Failed), p.Template)
		for _, state := range []pool.ContainerState{pool.ContainerDraining, pool.ContainerUnreachable, pool.ContainerUnheard, pool.ContainerReading, pool.ContainerCordoned, pool.ContainerReady} {
			gauge(k.containers, float64(p.Containers[state]), p.Template, string(state))
		}
	}
	var requests, carried uint64
	var sent, waiting int
	for _, d := range k.calls.Stats() {
		requests, carried = requests+d.Requests, carried+d.Calls
		sent, waiting = sent+d.Sent, waiting+d.Waiting+d.Outside
	}
	gauge(k.requests, float64(requests))
	gauge(k.dispatched, float64(carried))
	gauge(k.sent, float64(sent))
	gauge(k.waiting, float64(waiting))
}

// metricsText answers GET /metrics.
func (s *Server) metricsText(c echo.Context) error {
	promhttp.HandlerFor(s.Metrics.registry, promhttp.HandlerOpts{}).ServeHTTP(c.Response(), c.Request())
	return nil
}
