package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"berth/orchestrator/client"
	"berth/sandboxd/api"
	sandboxd "berth/sandboxd/client"
	"berth/slots"
	"berth/slots/workspace"
)

func (a *app) copyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "cp SOURCE DESTINATION", Short: "Copy files and trees into a slot and out of it",
		Long: `Copies a file, or a directory with all that is in it. One of the two is
LEASE:PATH; PATH is from the slot's workspace, or below /workspace.

Into a directory that is there the source comes under its own name, else it
becomes the destination. What a tree from a slot would put outside of the
destination is left out.`,
		Example: `  berth cp notes.txt default-x7:slot_3:17:
  berth cp default-x7:slot_3:17:build ./results`,
		Args: arguments(2, 2),
	}
	cmd.RunE = interruptible(func(ctx context.Context, cmd *cobra.Command, args []string) error {
		from, to := parsePlace(args[0]), parsePlace(args[1])
		if (from.lease == "") == (to.lease == "") {
			return usagef("one of the two must be in a slot, as CONTAINER:SLOT:TOKEN:PATH, and the other here")
		}
		c, err := a.client()
		if err != nil {
			return err
		}
		defer c.Close()
		lease, err := c.Lease(ctx, from.lease+to.lease)
		if err != nil {
			return err
		}
		ctx, done := c.Hold(ctx, lease)
		defer done()
		t := &transfer{client: c, lease: lease.ID, files: c.Files(lease.ID), progress: a.newProgress()}
		if from.lease != "" {
			err = t.download(ctx, from.path, to.path)
		} else {
			err = t.upload(ctx, from.path, to.path)
		}
		moved := t.progress.end()
		if err != nil {
			if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
				return cause
			}
			return err
		}
		if a.asJSON(cmd, false) {
			return a.printJSON(map[string]any{"from": args[0], "to": args[1], "bytes": moved})
		}
		return nil
	})
	return cmd
}

// place is a path here, or in the slot of a lease.
type place struct{ lease, path string }

var inSlot = regexp.MustCompile(`^([^:/]+:[^:/]+:[1-9][0-9]*):(.*)$`)

func parsePlace(text string) place {
	if m := inSlot.FindStringSubmatch(text); m != nil {
		return place{m[1], m[2]}
	}
	return place{path: text}
}

// transfer copies between this machine and one slot.
type transfer struct {
	client   *client.Client
	lease    string
	files    sandboxd.Files
	progress *progress
}

// upload copies from here into the slot.
func (t *transfer) upload(ctx context.Context, from, to string) error {
	st, err := os.Stat(from)
	if err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	own := filepath.Base(from)
	if own == "." || own == ".." || own == "/" {
		own = "" // it means what is in it
	}
	isDir, err := t.remoteDir(ctx, to)
	if err != nil {
		return err
	}
	if isDir {
		to = path.Join(to, own)
	}
	switch {
	case st.IsDir():
		return t.uploadTree(ctx, from, to)
	case !st.Mode().IsRegular():
		return fmt.Errorf("copy: %s is neither a file nor a directory", from)
	}
	f, err := os.Open(from)
	if err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	defer f.Close()
	t.progress.begin(from, st.Size())
	_, err = t.files.Put(ctx, to, t.progress.reader(f), sandboxd.PutOptions{Length: st.Size(), Mode: uint32(st.Mode().Perm())})
	return err
}

// remoteDir reports whether there is a directory, or the path says that there
// is to be one.
func (t *transfer) remoteDir(ctx context.Context, name string) (bool, error) {
	if trimmed := strings.TrimRight(name, "/"); trimmed == "" || trimmed == "." || trimmed == "/workspace" || trimmed != name {
		return true, nil
	}
	f, err := t.files.Stat(ctx, name)
	if err == nil {
		_ = f.Close() // it has no content
		return false, nil
	}
	switch slots.AsError(err).Kind {
	case slots.KindNotFound:
		return false, nil
	case slots.KindBadRequest:
		return true, nil // it is there and no file
	case slots.KindDenied:
		return false, nil // the copy itself is told why
	default:
		return false, err
	}
}

func (t *transfer) uploadTree(ctx context.Context, from, to string) error {
	tree, err := workspace.Open(from)
	if err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	t.progress.begin(from, 0)
	packed, pack := io.Pipe()
	var left workspace.Omissions
	ended := make(chan struct{})
	go func() { // waited for below
		defer close(ended)
		reply, err := tree.Tar(ctx, workspace.ArchiveArgs{}, pack)
		left = reply.Omissions
		_ = pack.CloseWithError(err) // nil is the end of the archive
	}()
	answer, err := t.files.PutTar(ctx, to, t.progress.reader(packed))
	_ = packed.Close() // ends the packing if nobody reads any more
	<-ended
	_ = tree.Close() // it was read only
	if err != nil {
		return err
	}
	for _, o := range answer.Omitted {
		left.Named = append(left.Named, workspace.Omission(o))
	}
	left.Count += answer.OmittedCount
	return omitted(left)
}

// omitted is the error of a tree that was not copied whole.
func omitted(left workspace.Omissions) error {
	if left.Count == 0 {
		return nil
	}
	names := make([]string, 0, 3)
	for _, o := range left.Named[:min(len(left.Named), 3)] {
		names = append(names, plainText(fmt.Sprintf("%s (%s)", o.Path, o.Reason)))
	}
	return fmt.Errorf("copied all but %d entries: %s", left.Count, strings.Join(names, ", "))
}

// download copies from the slot to here.
func (t *transfer) download(ctx context.Context, from, to string) error {
	st, err := os.Stat(to)
	isDir := err == nil && st.IsDir() || strings.HasSuffix(to, "/")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("copy: %w", err)
	}
	own := path.Base(strings.TrimRight(from, "/"))
	if own == "." || own == ".." || own == "/" || strings.TrimRight(from, "/") == "/workspace" {
		own = "" // it means what is in it
	}
	target := to
	if isDir {
		target = filepath.Join(to, own)
	}
	f, err := t.files.Get(ctx, from, sandboxd.GetOptions{})
	if err == nil {
		defer f.Close()
		return t.save(f, from, target)
	}
	if kind := slots.AsError(err).Kind; kind != slots.KindBadRequest {
		return err
	}
	found, err := t.list(ctx, from, api.ListRequest{MaxEntries: new(1)})
	if err != nil {
		return err
	}
	if len(found) == 1 && uncopied(found[0]) && found[0].Path == fromWorkspace(from) {
		return fmt.Errorf("copy: %s is neither a file nor a directory", from)
	}
	return t.downloadTree(ctx, from, target)
}

// list lists a directory of the slot. Of what is none the list is the thing
// itself.
func (t *transfer) list(ctx context.Context, name string, want api.ListRequest) ([]api.Entry, error) {
	want.Path = name
	answer, err := t.client.ListArtifacts(ctx, t.lease, want)
	return answer.Entries, err
}

// uncopied reports whether no archive holds what the entry is.
func uncopied(e api.Entry) bool { return !slices.Contains([]string{"file", "dir", "link"}, e.Type) }

// fromWorkspace is the path in the way in which lists name it.
func fromWorkspace(name string) string {
	return path.Clean(strings.TrimPrefix(path.Clean(name), "/workspace/"))
}

// save writes a file of the slot; what was there stays until it is whole.
func (t *transfer) save(f *sandboxd.File, from, target string) (err error) {
	t.progress.begin(from, f.Length)
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil { //nolint:gosec // as mkdir does
		return fmt.Errorf("copy: %w", err)
	}
	draft, err := os.CreateTemp(filepath.Dir(target), ".berth-cp-")
	if err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	defer func() {
		if err != nil {
			_ = os.Remove(draft.Name()) // best effort
		}
	}()
	_, err = io.Copy(draft, t.progress.reader(f))
	err = errors.Join(err, draft.Chmod(fs.FileMode(f.Mode).Perm()|0o200), draft.Close())
	if err != nil {
		return fmt.Errorf("copy %s: %w", from, err)
	}
	if err := os.Rename(draft.Name(), target); err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	return nil
}

// downloadTree unpacks a tree of the slot, which may be hostile: package
// workspace keeps it below target.
func (t *transfer) downloadTree(ctx context.Context, from, target string) error {
	packed, err := t.files.GetTar(ctx, from, false)
	if err != nil {
		return err
	}
	defer packed.Close()
	if err := os.MkdirAll(target, 0o755); err != nil { //nolint:gosec // as mkdir does
		return fmt.Errorf("copy: %w", err)
	}
	tree, err := workspace.Open(target)
	if err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	t.progress.begin(from, 0)
	reply, err := tree.Untar(ctx, workspace.UntarArgs{}, t.progress.reader(packed))
	if err = errors.Join(err, tree.Close()); err != nil {
		return fmt.Errorf("copy %s: %w", from, err)
	}
	// What was left out is told behind the last byte of the answer.
	if _, err := io.Copy(io.Discard, packed); err != nil {
		return fmt.Errorf("copy %s: %w", from, err)
	}
	if n := packed.Omitted(); n > 0 {
		reply.Count += n
		reply.Named = append(reply.Named, t.leftThere(ctx, from)...)
	}
	return omitted(reply.Omissions)
}

// leftThere names what no archive of the tree holds, as far as a list of it
// tells: what is merely not readable looks like a file there.
func (t *transfer) leftThere(ctx context.Context, from string) []workspace.Omission {
	found, err := t.list(ctx, from, api.ListRequest{Recursive: true})
	var named []workspace.Omission
	for _, e := range found {
		if uncopied(e) {
			named = append(named, workspace.Omission{Path: e.Path, Reason: e.Type})
		}
	}
	if err != nil || len(named) == 0 {
		place := cmp.Or(strings.Trim(from, "/"), "the workspace")
		named = append(named, workspace.Omission{Path: place, Reason: "holds what no archive holds, or what is not to be read"})
	}
	return named
}
