// Package tooldemo runs a Python and a TypeScript function tool as a platform
// of agents would, with requirements, state and secrets, and says of each run
// whether everything of it is as promised. The packages that the tools need it
// makes itself, so that no network is asked.
package tooldemo
