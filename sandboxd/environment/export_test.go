package environment

// FailureOf is for tests: a full disk of the agent's own is hard to come by.
var FailureOf = failureOf
