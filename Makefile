# `make` alone lists the targets. Needed: GNU make, bash and Go 1.26; what a
# target needs beyond that it checks first, and names the command to install it.

SHELL       := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# Stamped into the binaries. A tree without git builds as well.
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X main.version=$(VERSION)

# Ownership of the tree must not decide whether it builds, so nothing asks git.
export GOFLAGS := -buildvcs=false $(GOFLAGS)

PKGS      ?= ./...
TESTFLAGS ?=
FUZZTIME  ?= 10s
RUN_ARGS  ?= --listen 127.0.0.1:8080 --slots 4 --data-dir $${TMPDIR:-/tmp}/berth-run-$$(id -u)
DEMO_ARGS ?=
BENCH_ARGS ?=

# The tools of `make check`, pinned; `make tools` installs them into .bin.
GOLANGCI_LINT := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
GOFUMPT       := mvdan.cc/gofumpt@v0.12.0
TOOLS         := $(GOLANGCI_LINT) $(GOFUMPT)
# One stamp per tool and version: a new pin installs anew.
stamp = .bin/.$(notdir $(1))
STAMPS := $(foreach tool,$(TOOLS),$(call stamp,$(tool)))

# need COMMAND,DEBIAN PACKAGE: fails with the install command when it is missing.
need = command -v $(1) >/dev/null || { echo "make $@ needs $(1): apt-get install -y $(2)" >&2; exit 1; };

.PHONY: help build image run demo test hostile race lint fuzz bench check clean tools need-go need-test

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: need-go ## build the static binaries into bin/
	CGO_ENABLED=0 go build -trimpath -ldflags "$(LDFLAGS)" -o bin/ ./cmd/...

run: build ## serve four slots on 127.0.0.1:8080 (RUN_ARGS=...)
	exec bin/sandboxd serve $(RUN_ARGS)

demo: build need-test ## one real rollout on a pool of containers (DEMO_ARGS=...)
	bin/berth demo --agent bin/sandboxd --orchestrator bin/orchestrator $(DEMO_ARGS)

test: need-test ## all tests; those that need more say what (PKGS=, TESTFLAGS=, BERTH_REQUIRE=)
	go test -count=1 -timeout 10m $(TESTFLAGS) $(PKGS)

image: build ## the container images, of what base is local, and their sizes (BASE=, TAG=, RUN_AS=)
	images/build

hostile: need-test ## the hostile suite at every level that this machine offers
	BERTH_LEVELS=all go test -count=1 -timeout 60m $(TESTFLAGS) ./sandboxd/hostile

race: need-test ## all tests under the race detector (PKGS=, TESTFLAGS=)
	@$(call need,gcc,gcc libc6-dev)
	CGO_ENABLED=1 go test -race -count=1 -timeout 15m $(TESTFLAGS) $(PKGS)

lint: need-go $(call stamp,$(GOLANGCI_LINT)) ## golangci-lint with .golangci.yml
	.bin/golangci-lint run ./...

fuzz: need-test ## every fuzz target for FUZZTIME (10s)
	@grep -rHo --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*' . | sort | while IFS=: read -r file target; do \
		target=$${target#func }; package=$$(dirname "$$file"); \
		echo "== $$package $$target"; \
		go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) "$$package" </dev/null || exit 1; \
	done

bench: build ## sandboxd and a pool against their bars, as tables (BENCH_ARGS='--only reset --runs 100')
	bin/berth bench --agent bin/sandboxd --orchestrator bin/orchestrator $(BENCH_ARGS)

check: need-go $(call stamp,$(GOLANGCI_LINT)) ## formatting, go.mod, vet, lint, structure: what a change must pass beside the tests
	.bin/golangci-lint fmt --diff ./...
	go mod tidy -diff
	go vet ./...
	.bin/golangci-lint run ./...
	go test -count=1 -timeout 2m -run 'TestStructure' .

clean: ## remove bin/ and what tests left; .bin stays, it takes minutes to make
	rm -rf bin
	find . -path ./.git -prune -o -path ./.bin -prune -o -type f \( -name '*.test' -o -name '*.prof' -o -name '*.out' \) -exec rm -f {} +

tools: need-go $(STAMPS) ## install the pinned tools into .bin/ (minutes, once)

$(STAMPS): need-go
	@mkdir -p .bin && if [[ ! -e $@ ]]; then \
		spec="$(filter %/$(patsubst .%,%,$(notdir $@)),$(TOOLS))"; \
		echo "installing $$spec"; \
		GOBIN="$(CURDIR)/.bin" CGO_ENABLED=0 GOFLAGS=-trimpath go install "$$spec" && touch $@; \
	fi

need-go:
	@command -v go >/dev/null || { echo "needs Go 1.26 or later on PATH: https://go.dev/dl/" >&2; exit 1; }; \
	have=$$(go env GOVERSION); have=$${have#go1.}; \
	if (( $${have%%[!0-9]*} < 26 )); then echo "needs Go 1.26 or later, PATH has $$(go env GOVERSION): https://go.dev/dl/" >&2; exit 1; fi

# What the tests run besides Go. git, python3, curl, gcc and docker are not
# among it: a test that wants one of those skips and says so.
need-test: need-go
	@$(call need,diff,diffutils) $(call need,sed,sed) $(call need,tar,tar) true
