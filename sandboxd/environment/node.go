package environment

import (
	_ "embed"
	"encoding/json"
	"path"
	"strings"

	"berth/sandboxd/api"
	"berth/slots"
)

// registry is a script that serves directories of tarballs as a registry of
// npm's, inside the sandbox of the build, and runs npm with it.
//
//go:embed registry.js
var registry []byte

const aboutNode = `console.log(JSON.stringify({version: process.versions.node, path: require("fs").realpathSync(process.execPath)}))`

// node makes a tree of modules with npm. Packages' own install scripts run:
// many do not work without, and the sandbox is what holds them.
func (w *workshop) node() (interpreter, error) {
	if err := w.begin(); err != nil {
		return interpreter{}, err
	}
	facts, err := w.findNode()
	if err != nil {
		return interpreter{}, err
	}
	w.say("making the environment with npm")
	npm := []string{"npm", "install", "--omit=dev", "--no-audit", "--no-fund", "--no-update-notifier", "--no-progress", "--loglevel=warn"}
	for _, r := range w.spec.Requirements {
		npm = append(npm, r.Argument(api.LanguageNode))
	}
	c, err := w.fromRegistry(npm)
	if err != nil {
		return interpreter{}, err
	}
	output, code, err := w.run(c)
	if missing(err) {
		return interpreter{}, lacking("the container has no npm")
	}
	if err == nil && code != 0 {
		err = w.judge(output)
	}
	if err != nil {
		return interpreter{}, err
	}
	output, code, err = w.run(command{argv: []string{"npm", "ls", "--all", "--omit=dev", "--no-update-notifier"}, env: w.npmEnv(), quiet: true})
	if err == nil && code != 0 {
		err = w.fault(api.InstallVerify, "", output)
	}
	if err != nil {
		return interpreter{}, err
	}
	return facts, w.finish()
}

func (w *workshop) findNode() (facts interpreter, err error) {
	output, code, err := w.run(command{argv: []string{"node", "-e", aboutNode}, quiet: true})
	if missing(err) || err == nil && code != 0 {
		return facts, lacking("the container has no node that runs")
	}
	if err != nil {
		return facts, err
	}
	var found struct{ Version, Path string }
	if err := json.Unmarshal([]byte(output), &found); err != nil || !path.IsAbs(found.Path) {
		return facts, lacking("the container's node does not say what it is")
	}
	if want := w.spec.Version; want != "" && found.Version != want && !strings.HasPrefix(found.Version, want+".") {
		return facts, lacking("the container has no Node %s, only %s", want, found.Version)
	}
	return interpreter{Version: found.Version, Path: found.Path}, nil
}

func (w *workshop) npmEnv() []string {
	env := []string{"npm_config_cache=" + w.scratch("npm"), "npm_config_userconfig=" + w.scratch("npmrc")}
	if at := w.spec.Index.NPMRegistry; at != "" {
		env = append(env, "npm_config_registry="+at)
	}
	return env
}

// fromRegistry is the command that runs npm with the spec's index.
func (w *workshop) fromRegistry(npm []string) (command, error) {
	x := w.spec.Index
	if len(x.FindLinks) == 0 && !x.NoIndex {
		return command{argv: npm, env: w.npmEnv()}, nil
	}
	if _, code, err := w.run(command{argv: []string{"npm", "--version"}, env: w.npmEnv(), quiet: true}); err != nil || code != 0 {
		return command{argv: npm}, err // which then says that it is missing
	}
	job := struct {
		Directories []string `json:"directories"`
		Upstream    string   `json:"upstream"` // "": none
		Argv        []string `json:"argv"`
	}{Directories: []string{}, Argv: npm}
	for _, at := range x.FindLinks {
		if !path.IsAbs(at) {
			return command{}, slots.Errorf(slots.KindBadRequest, "find_links %.80q: for node, directories only", at)
		}
		job.Directories = append(job.Directories, at)
	}
	if !x.NoIndex {
		if job.Upstream = x.NPMRegistry; job.Upstream == "" {
			job.Upstream = "https://registry.npmjs.org"
		}
	}
	text, err := json.Marshal(job)
	if err != nil {
		return command{}, slots.Errorf(slots.KindInternal, "encode job: %w", err)
	}
	return command{argv: []string{"node"}, script: registry, env: append(w.npmEnv(), "BERTH_JOB="+string(text))}, nil
}
