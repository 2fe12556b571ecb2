package jobs

import _ "embed"

// Policy is the ACL policy of the orchestrator, in HCL.
//
//go:embed orchestrator.policy.hcl
var Policy string
