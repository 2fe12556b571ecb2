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
		if err := restrictScope(ll.ScopeAbstractUnixSocket|ll.ScopeSignal, l.Files); err != nil {
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
// abstract names that others listen on. files says that the slot has a layer
// about files.
func setApart(files bool) error {
	err := restrictScope(ll.ScopeAbstractUnixSocket, files)
	if errors.Is(err, unix.EPERM) || errors.Is(err, errNoRuleset) {
		return nil // a slot without limits, whose processes may gain privileges; a kernel that knows no such domain
	}
	return err
}

var errNoRuleset = errors.New("create ruleset")

// restrictScope adds a layer of scopes. files says that another layer is about
// files: only then may this one say that it leaves moving them to that.
func restrictScope(scoped uint64, files bool) error {
	rules, err := newRuleset(ll.RulesetAttr{Scoped: scoped}, files)
	if err != nil {
		return err
	}
	defer unix.Close(rules)
	return ll.LandlockRestrictSelf(rules, 0)
}

// newRuleset makes a ruleset. Once one layer is about files, every other one
// denies moving them between directories unless it says otherwise; and when one
// says so, all are about files. movable has the ruleset say it, for everything
// below this process's root.
func newRuleset(attr ll.RulesetAttr, movable bool) (int, error) {
	if movable {
		attr.HandledAccessFS |= ll.AccessFSRefer
	}
	rules, err := ll.LandlockCreateRuleset(&attr, 0)
	if err != nil {
		return -1, fmt.Errorf("%w: %w", errNoRuleset, err)
	}
	if !movable {
		return rules, nil
	}
	root, err := unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0)
	if err == nil {
		err = ll.LandlockAddPathBeneathRule(rules, &ll.PathBeneathAttr{AllowedAccess: ll.AccessFSRefer, ParentFd: root}, 0)
		unix.Close(root)
	}
	if err != nil {
		unix.Close(rules)
		return -1, fmt.Errorf("leave moving files alone: %w", err)
	}
	return rules, nil
}

// portRules makes a ruleset that leaves TCP connections to every port but
// one, and servers on them: on another address than the agent's, a slot would be
// asked in its place. Landlock knows only what is allowed, so all others are named;
// the spawner does it once and holders share the descriptor.
func portRules(port int, movable bool) (int, error) {
	const all = ll.AccessNetConnectTCP | ll.AccessNetBindTCP
	rules, err := newRuleset(ll.RulesetAttr{HandledAccessNet: all}, movable)
	if err != nil {
		return -1, err
	}
	for p := range 1 << 16 {
		if p == port {
			continue
		}
		rule := ll.NetPortAttr{AllowedAccess: all, Port: uint64(p)}
		if err := ll.LandlockAddNetPortRule(rules, &rule, 0); err != nil {
			unix.Close(rules)
			return -1, fmt.Errorf("allow port %d: %w", p, err)
		}
	}
	return rules, nil
}
