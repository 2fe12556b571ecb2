package jobs

import (
	"cmp"
	_ "embed"
	"fmt"
	"regexp"
	"strings"
)

// Policy is the ACL policy of the orchestrator, in HCL, for the namespace that
// is called default.
//
//go:embed orchestrator.policy.hcl
var Policy string

// namespacePattern are the names that Nomad takes.
var namespacePattern = regexp.MustCompile(`^[a-zA-Z0-9-]{1,128}$`)

// PolicyFor is the policy for the namespace that the orchestrator and its pool
// are in. The error is that there can be none of that name.
func PolicyFor(namespace string) (string, error) {
	if !namespacePattern.MatchString(namespace) {
		return "", fmt.Errorf("namespace %.80q: want 1 to 128 letters, digits and -", namespace)
	}
	return strings.Replace(Policy, `namespace "default"`, fmt.Sprintf("namespace %q", namespace), 1), nil
}

// ApplyPolicy are the commands that give the job of the orchestrator its policy.
// "" is the default namespace.
func ApplyPolicy(namespace string) string {
	namespace = cmp.Or(namespace, "default")
	return fmt.Sprintf("`berth nomad render policy --namespace %s >policy.hcl` and `nomad acl policy apply -namespace %s -job %s berth-orchestrator policy.hcl`", namespace, namespace, OrchestratorJob)
}
