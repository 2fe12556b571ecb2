package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"berth/orchestrator/client"
	"berth/slots"
)

// Exit statuses, as --help lists them.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitUnreachable = 69
	exitConfig      = 78
	exitTimedOut    = 124
	exitInterrupted = 130
	exitPipe        = 141
)

// failure ends the program with a status.
type failure struct {
	status int
	err    error // nil: what there is to say has been said
}

// Error returns the cause's message.
func (f *failure) Error() string {
	if f.err == nil {
		return fmt.Sprintf("exit status %d", f.status)
	}
	return f.err.Error()
}

// Unwrap returns the cause.
func (f *failure) Unwrap() error { return f.err }

func usagef(format string, args ...any) error {
	return &failure{exitUsage, fmt.Errorf(format, args...)}
}

func configf(format string, args ...any) error {
	return &failure{exitConfig, fmt.Errorf(format, args...)}
}

// report prints what went wrong, and what mends it, and returns the status.
func (a *app) report(err error) int {
	if err == nil {
		return exitOK
	}
	if f, ok := errors.AsType[*failure](err); ok {
		if f.err != nil {
			fmt.Fprintln(a.err, "berth:", err)
		}
		return f.status
	}
	status, mend := a.mend(err)
	text := err.Error()
	if mend != "" {
		text += ": " + mend
	}
	fmt.Fprintln(a.err, "berth:", text)
	return status
}

// mend says what to do about an error of the server.
func (a *app) mend(err error) (status int, mend string) {
	if client.Unreachable(err) {
		return exitUnreachable, fmt.Sprintf("no server answers at %s; start one by \"berth up\", or name one by --url or BERTH_URL", a.address())
	}
	e, ok := errors.AsType[*slots.Error](err)
	if !ok {
		return exitFailed, ""
	}
	switch e.Kind {
	case slots.KindUnauthorized:
		return exitConfig, "name the server's token by --token-file or BERTH_TOKEN"
	case slots.KindDenied:
		if strings.Contains(e.Message, "operators") {
			return exitConfig, "name the operators' token by --token-file or BERTH_TOKEN"
		}
		if strings.Contains(e.Message, "organization") {
			return exitConfig, "name an organization of your token by --organization or BERTH_ORGANIZATION, or another token by --token-file or BERTH_TOKEN"
		}
	case slots.KindFenced, slots.KindLeaseExpired, slots.KindSlotLost:
		return exitFailed, "\"berth slots\" lists the leases that hold"
	case slots.KindPoolExhausted:
		return exitFailed, "wait longer by --wait, or look by \"berth slots\" who holds the slots"
	case slots.KindContainerUnreachable, slots.KindUnavailable:
		return exitFailed, "\"berth slots\" shows how the containers are"
	default:
	}
	return exitFailed, ""
}

// printJSON prints v, indented for people.
func (a *app) printJSON(v any) error {
	e := json.NewEncoder(a.out)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}
