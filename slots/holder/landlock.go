package holder

import (
	"errors"
	"fmt"

	"github.com/landlock-lsm/go-landlock/landlock"
	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"
)

// landlockABIs are the rule sets by kernel ABI. Each handles everything that
// its ABI knows, so a kernel that knows more denies no less.
var landlockABIs = []landlock.Config{
	1: landlock.V1, 2: landlock.V2, 3: landlock.V3, 4: landlock.V4,
	5: landlock.V5, 6: landlock.V6, 7: landlock.V7,
}

// landlockConfig picks the rule set of an ABI; newer kernels get the newest
// that we know.
func landlockConfig(abi int) landlock.Config {
	return landlockABIs[max(1, min(abi, len(landlockABIs)-1))]
}

// setLandlock confines files, abstract sockets and signals, and last the
// agent's port: each further layer copies the rules of those before it, and
// the port's are many.
func setLandlock(p *Plan) error {
	l := p.Landlock
	if l == nil {
		return nil
	}
	if l.Files {
		if err := restrictFiles(l); err != nil {
			return fmt.Errorf("restrict files: %w", err)
		}
	}
	if l.Scope {
		if err := landlock.V6.RestrictScoped(); err != nil {
			return fmt.Errorf("restrict scope: %w", err)
		}
	}
	if l.HidePort {
		if err := ll.LandlockRestrictSelf(rulesFD, 0); err != nil {
			return fmt.Errorf("restrict ports: %w", err)
		}
	}
	return nil
}

func restrictFiles(l *Landlock) error {
	config := landlockConfig(l.ABI)
	rules := []landlock.Rule{
		// Listed when the sandbox was planned: what has gone since, perhaps long
		// before a holder is replaced, is no loss.
		landlock.RODirs(l.Read...).IgnoreIfMissing(),
		landlock.ROFiles(l.ReadFiles...).IgnoreIfMissing(),
		landlock.RWDirs(l.Write...).WithRefer(),
		landlock.RWFiles(l.Device...).WithIoctlDev(),
	}
	if l.ABI < 2 {
		rules[2] = landlock.RWDirs(l.Write...)
	}
	if l.ABI < 5 {
		rules[3] = landlock.RWFiles(l.Device...)
	}
	return config.RestrictPaths(rules...)
}

// setApart gives this thread a Landlock domain of its own. The kernel lets no
// process look into one of another domain, unless that is a part of its own.
// A domain has to forbid something, and this is the least: sockets with
// abstract names that others listen on. A rule about files would have every
// layer below it forbid moving them between directories.
func setApart() error {
	attr := ll.RulesetAttr{Scoped: ll.ScopeAbstractUnixSocket}
	rules, err := ll.LandlockCreateRuleset(&attr, 0)
	if err != nil {
		return nil //nolint:nilerr // a kernel that knows no such domain
	}
	defer unix.Close(rules)
	if err := ll.LandlockRestrictSelf(rules, 0); err != nil && !errors.Is(err, unix.EPERM) {
		return err // EPERM: a slot without limits, whose processes may gain privileges
	}
	return nil
}

// portRules makes a ruleset that leaves TCP connections to every port but
// one. Landlock knows only what is allowed, so all others are named; the
// spawner does it once and holders share the descriptor.
func portRules(port int) (int, error) {
	attr := ll.RulesetAttr{HandledAccessNet: ll.AccessNetConnectTCP}
	rules, err := ll.LandlockCreateRuleset(&attr, 0)
	if err != nil {
		return -1, fmt.Errorf("create ruleset: %w", err)
	}
	for p := range 1 << 16 {
		if p == port {
			continue
		}
		rule := ll.NetPortAttr{AllowedAccess: ll.AccessNetConnectTCP, Port: uint64(p)}
		if err := ll.LandlockAddNetPortRule(rules, &rule, 0); err != nil {
			unix.Close(rules)
			return -1, fmt.Errorf("allow port %d: %w", p, err)
		}
	}
	return rules, nil
}
