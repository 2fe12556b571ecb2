package docs_test

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"berth/jobs"
	"berth/slots/sandbox/sandboxtest"
)

// queries lists the expressions of the dashboard and of the alert rules by
// what they are for.
func queries(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	text, err := os.ReadFile("../images/grafana/dashboard.json")
	require.NoError(t, err)
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ RefID, Expr string }
		}
		Templating struct {
			List []struct {
				Name  string
				Query any
			}
		}
	}
	require.NoError(t, json.Unmarshal(text, &dashboard))
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			all["panel "+p.Title+" "+target.RefID] = target.Expr
		}
	}
	for _, v := range dashboard.Templating.List {
		if q, ok := v.Query.(map[string]any); ok {
			all["variable "+v.Name] = q["query"].(string)
		}
	}
	text, err = os.ReadFile("../images/grafana/alerts.yaml")
	require.NoError(t, err)
	var rules struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr string
				Annotations map[string]string
			}
		}
	}
	require.NoError(t, yaml.Unmarshal(text, &rules))
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			all["alert "+r.Alert] = r.Expr
			assert.NotEmpty(t, r.Annotations["summary"], r.Alert)
			assert.NotEmpty(t, r.Annotations["description"], r.Alert)
		}
	}
	require.Greater(t, len(all), 25)
	for _, name := range []string{"alert BerthNobodyScales", "alert BerthNoOrchestrator"} {
		require.Contains(t, all, name)
	}
	return all
}

// started runs a server until the test ends, and returns its address.
func started(t *testing.T, name string, args ...string) string {
	t.Helper()
	address := freeAddress(t)
	cmd := exec.CommandContext(t.Context(), program(t, name), append([]string{"serve", "--listen", address}, args...)...)
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	require.NoError(t, err)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		if text, _ := os.ReadFile(log.Name()); t.Failed() {
			t.Logf("%s", text)
		}
	})
	require.Eventually(t, func() bool {
		answer, err := http.Get("http://" + address + "/readyz")
		if err != nil {
			return false
		}
		defer answer.Body.Close()
		return answer.StatusCode == http.StatusOK
	}, time.Minute, 50*time.Millisecond)
	return address
}

// post sends a body and returns the answer, which must be a success.
func post(t *testing.T, url, body string) string {
	t.Helper()
	answer, err := http.Post(url, "application/json", strings.NewReader(body)) //nolint:gosec // loopback
	require.NoError(t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	require.Less(t, answer.StatusCode, 300, "%s", text)
	return string(text)
}

// series are the names of a server's metrics with those of their labels.
func series(t *testing.T, address string, into map[string]map[string]bool) {
	t.Helper()
	answer, err := http.Get("http://" + address + "/metrics")
	require.NoError(t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	for _, m := range regexp.MustCompile(`(?m)^([a-z_]+)(?:\{(.*)\})? [^ ]+$`).FindAllStringSubmatch(string(text), -1) {
		if into[m[1]] == nil {
			into[m[1]] = map[string]bool{"instance": true, "job": true} // Prometheus gives these
		}
		for _, label := range regexp.MustCompile(`([a-z_]+)="`).FindAllStringSubmatch(m[2], -1) {
			into[m[1]][label[1]] = true
		}
	}
}

var (
	metricName = regexp.MustCompile(`\b(?:berth|process|go)_[a-z_]+\b`)
	matchers   = regexp.MustCompile(`\b((?:berth|process|go)_[a-z_]+)\{([^}]*)\}`)
	grouping   = regexp.MustCompile(`\bby \(([a-z_, ]+)\)`)
	labelName  = regexp.MustCompile(`([a-z_]+)(?:=~|!=|=)"`)
)

func TestDashboardAndAlertsAskForWhatThereIs(t *testing.T) {
	pool := started(t, "orchestrator", "--containers", "1", "--slots", "2", "--data-dir", sandboxtest.DataDir(t), "--sandboxd", program(t, "sandboxd"),
		"--isolation-require", "none")
	post(t, "http://"+pool+"/execute", `{"trajectory_id":"a","tool":{"name":"terminal","arguments":{"command":"true"}}}`)
	post(t, "http://"+pool+"/release", `{"trajectory_id":"a","reset_workspace":true}`)
	post(t, "http://"+pool+"/v1/leases", `{"trajectory":"dies","ttl_s":1}`)
	agent := started(t, "sandboxd", "--slots", "1", "--data-dir", sandboxtest.DataDir(t), "--isolation-require", "none")
	post(t, "http://"+agent+"/execute", `{"slot_id":"slot_0","tool":"bash","args":{"command":"true"}}`)
	post(t, "http://"+agent+"/reset", `{"slot_id":"slot_0"}`)

	there := map[string]map[string]bool{}
	require.Eventually(t, func() bool {
		series(t, pool, there)
		return there["berth_pool_leases_ended_total"] != nil && there["berth_pool_release_seconds_bucket"] != nil
	}, time.Minute, 100*time.Millisecond, "a lease that nobody renews ends")
	series(t, agent, there)

	for what, query := range queries(t) {
		names := metricName.FindAllString(query, -1)
		require.NotEmpty(t, names, what)
		for _, name := range names {
			assert.Contains(t, there, name, "%s: %s", what, query)
		}
		for _, m := range matchers.FindAllStringSubmatch(query, -1) {
			for _, label := range labelName.FindAllStringSubmatch(m[2], -1) {
				assert.Contains(t, there[m[1]], label[1], "%s: %s", what, query)
			}
		}
		for _, m := range grouping.FindAllStringSubmatchIndex(query, -1) {
			of := metricName.FindString(query[m[1]:]) // what is grouped stands behind it
			for label := range strings.SplitSeq(query[m[2]:m[3]], ",") {
				assert.Contains(t, there[of], strings.TrimSpace(label), "%s: %s", what, query)
			}
		}
	}
}

// poolGauge finds what every orchestrator tells of the same pool, and what is
// done with it.
var poolGauge = regexp.MustCompile(`(\w+)(?: by \([a-z_, ]+\))? ?\(\s*(berth_pool_(?:slots|leased_slots|containers|scales|failed_starts))\b`)

// summed lists the gauges of the pool that the query does not take the maximum
// of first: several orchestrators would count each slot several times.
func summed(query string) []string {
	all := regexp.MustCompile(`\bberth_pool_(?:slots|leased_slots|containers|scales|failed_starts)\b`).FindAllString(query, -1)
	for _, m := range poolGauge.FindAllStringSubmatch(query, -1) {
		if at := slices.Index(all, m[2]); m[1] == "max" || m[1] == "absent" {
			all = slices.Delete(all, at, at+1)
		}
	}
	return all
}

func TestSeveralOrchestratorsCountASlotOnce(t *testing.T) {
	seen := 0
	for what, query := range queries(t) {
		if strings.HasPrefix(what, "variable ") {
			continue // names alone
		}
		assert.Empty(t, summed(query), "%s: %s", what, query)
		seen += len(poolGauge.FindAllString(query, -1))
	}
	assert.GreaterOrEqual(t, seen, 8)
	assert.Equal(t, []string{"berth_pool_slots"}, summed(`sum by (state) (berth_pool_slots{template="x"})`))
	assert.Equal(t, []string{"berth_pool_containers"}, summed(`max by (template) (berth_pool_slots) + berth_pool_containers`))
	assert.Equal(t, []string{"berth_pool_leased_slots"}, summed(`sum(berth_pool_leased_slots) / sum(max by (template, state) (berth_pool_slots))`))
	assert.Empty(t, summed(`sum(berth_pool_queue)`), "each has a queue of its own")
}

func TestPrometheusFindsTheServicesOfTheJobs(t *testing.T) {
	type server struct{ Server string }
	type relabel struct {
		Sources []string `yaml:"source_labels"`
		Regex   string
		Action  string
		Target  string `yaml:"target_label"`
	}
	var config struct {
		Rules   []string          `yaml:"rule_files"`
		Global  map[string]string `yaml:"global"`
		Scrapes []struct {
			Name          string   `yaml:"job_name"`
			Nomad         []server `yaml:"nomad_sd_configs"`
			Authorization map[string]string
			Relabel       []relabel `yaml:"relabel_configs"`
		} `yaml:"scrape_configs"`
	}
	text, err := os.ReadFile("../images/grafana/prometheus.yml")
	require.NoError(t, err)
	decoder := yaml.NewDecoder(strings.NewReader(string(text)))
	decoder.KnownFields(true)
	require.NoError(t, decoder.Decode(&config))
	for _, name := range config.Rules {
		assert.FileExists(t, "../images/grafana/"+name)
	}
	pool, err := jobs.Sandboxd(jobs.Template{Job: "berth-big_one"})
	require.NoError(t, err)
	control, err := jobs.Orchestrator(jobs.Template{Job: "berth-default"})
	require.NoError(t, err)
	found := map[string][]string{}
	for _, name := range []string{pool.TaskGroups[0].Tasks[0].Services[0].Name, control.TaskGroups[0].Tasks[0].Services[0].Name, "else", "not-berth-x"} {
		for _, s := range config.Scrapes {
			keep := true
			for _, r := range s.Relabel {
				assert.Equal(t, []string{"__meta_nomad_service"}, r.Sources)
				fits := regexp.MustCompile("^(?:" + r.Regex + ")$").MatchString(name)
				switch r.Action {
				case "keep":
					keep = keep && fits
				case "drop":
					keep = keep && !fits
				default:
					assert.NotEmpty(t, r.Target)
				}
			}
			if keep {
				found[s.Name] = append(found[s.Name], name)
			}
		}
	}
	assert.Equal(t, map[string][]string{"berth-orchestrator": {"berth-orchestrator"}, "berth-containers": {"berth-big-one"}}, found)
	for _, s := range config.Scrapes {
		assert.Equal(t, []server{{"http://127.0.0.1:4646"}}, s.Nomad, s.Name)
		assert.Equal(t, map[string]string{"credentials_file": "/etc/prometheus/berth-metrics"}, s.Authorization, s.Name)
	}
}
