package workspace

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"berth/slots"
)

// PathError is a failed operation on a path. It is what the *slots.Error of
// every operation wraps, and it is plain enough to cross a process boundary
// as JSON. Message is the text of the reference's tools ("File not found: P");
// a caller with other words makes them from Kind and Path.
type PathError struct {
	Op      string     `json:"op"`   // name in Ops
	Path    string     `json:"path"` // as the caller gave it
	Kind    slots.Kind `json:"kind"`
	Message string     `json:"message"`
	Err     error      `json:"-"` // the cause, in the process where it happened
}

// Error returns the message.
func (e *PathError) Error() string { return e.Message }

// Unwrap returns the cause.
func (e *PathError) Unwrap() error { return e.Err }

// Typed wraps e into the error type that the rest of Berth speaks. The two
// ends of a process boundary are EncodeError and Typed.
func (e *PathError) Typed() *slots.Error { return slots.Errorf(e.Kind, "%w", e) }

// EncodeError returns the transferable part of an operation's error; nil for
// nil. An error that names no path keeps its kind and message.
func EncodeError(err error) *PathError {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*PathError](err); ok {
		return e
	}
	e := slots.AsError(err)
	return &PathError{Kind: e.Kind, Message: e.Message, Err: err}
}

// The refusals that no errno stands for.
var (
	errOutside = errors.New("path leaves the workspace")
	errNotFile = errors.New("not a regular file")
	errNotDir  = errors.New("not a directory")
	errNUL     = errors.New("path holds a NUL byte")
	errRootDir = errors.New("path is the workspace itself")
)

// texts says, cause by cause, what the caller is told. %s is the path. The
// first match wins.
var texts = []struct {
	cause error
	kind  slots.Kind
	text  string
}{
	{errOutside, slots.KindDenied, "Access denied: path outside workspace"},
	{unix.EXDEV, slots.KindDenied, "Access denied: path outside workspace"},
	{unix.ENOENT, slots.KindNotFound, "File not found: %s"},
	{unix.ENOTDIR, slots.KindNotFound, "File not found: %s"},
	{errNotFile, slots.KindBadRequest, "Not a file: %s"},
	{unix.EISDIR, slots.KindBadRequest, "Not a file: %s"},
	{unix.ENXIO, slots.KindBadRequest, "Not a file: %s"}, // a socket, or a device without driver
	{unix.ENODEV, slots.KindBadRequest, "Not a file: %s"},
	{errNotDir, slots.KindBadRequest, "Not a directory: %s"},
	{errNUL, slots.KindBadRequest, "Invalid path: holds a NUL byte"},
	{errRootDir, slots.KindBadRequest, "Invalid path: %s is the workspace itself"},
	{unix.ENOTEMPTY, slots.KindBadRequest, "Directory not empty: %s"},
	{unix.EEXIST, slots.KindConflict, "File exists: %s"},
	{unix.ELOOP, slots.KindBadRequest, "Too many symbolic links: %s"},
	{unix.ENAMETOOLONG, slots.KindBadRequest, "Path too long: %s"},
	{unix.EACCES, slots.KindDenied, "Permission denied: %s"},
	{unix.EPERM, slots.KindDenied, "Permission denied: %s"},
	{unix.EROFS, slots.KindDenied, "Permission denied: %s"},
	{unix.ENOSPC, slots.KindTooLarge, "No space left in the workspace: %s"},
	{unix.EDQUOT, slots.KindTooLarge, "No space left in the workspace: %s"},
	{unix.EFBIG, slots.KindTooLarge, "No space left in the workspace: %s"},
	{context.Canceled, slots.KindInterrupted, "Interrupted: %s"},
	{context.DeadlineExceeded, slots.KindInterrupted, "Interrupted: %s"},
}

// failure types err for the caller of op on path. nil and typed errors pass.
func failure(op, path string, err error) error {
	if err == nil {
		return nil
	}
	if _, typed := errors.AsType[*slots.Error](err); typed {
		return err
	}
	for _, t := range texts {
		if errors.Is(err, t.cause) {
			text := t.text
			if strings.Contains(text, "%s") {
				text = fmt.Sprintf(text, shorten(path, maxNameInText))
			}
			return (&PathError{Op: op, Path: path, Kind: t.kind, Message: text, Err: err}).Typed()
		}
	}
	text := fmt.Sprintf("%s %s: %v", op, shorten(path, maxNameInText), err)
	return (&PathError{Op: op, Path: path, Kind: slots.KindInternal, Message: text, Err: err}).Typed()
}

// refusal is a typed error with a text of its own.
func refusal(op, path string, kind slots.Kind, format string, args ...any) error {
	return (&PathError{Op: op, Path: path, Kind: kind, Message: fmt.Sprintf(format, args...)}).Typed()
}

// maxNameInText bounds the path in a message; PathError.Path holds it whole.
const maxNameInText = 4096

// shorten cuts text on a rune boundary and marks the cut.
func shorten(text string, most int) string {
	if len(text) <= most {
		return text
	}
	for most > 0 && !utf8.RuneStart(text[most]) {
		most--
	}
	return text[:most] + "..."
}
