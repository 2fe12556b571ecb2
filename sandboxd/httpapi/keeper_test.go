package httpapi

import (
	"berth/sandboxd/execution"
	"berth/sandboxd/keeper"
)

// What the server is written against is what the keeper offers.
var (
	_ Executions      = (*keeper.Keeper)(nil)
	_ Slots           = (*keeper.Keeper)(nil)
	_ Leases          = (*keeper.Keeper)(nil)
	_ Files           = (*keeper.Keeper)(nil)
	_ Registry        = (*execution.Registry)(nil)
	_ keeper.Observer = (*Metrics)(nil)
)
