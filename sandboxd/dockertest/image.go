package dockertest

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// programs are what the image is made of, from the machine's own files: no
// registry is asked.
var programs = []string{
	"bash", "sh", "cat", "chmod", "echo", "env", "head", "id", "ls", "mkdir", "mv", "printf", "pwd", "rm", "seq", "setsid",
	"sleep", "stat", "tail", "timeout", "touch", "true", "wc",
}

const ownImage = "berth-dockertest"

// Files are a shell, a few programs and their libraries: where they are in a
// root of their own, and where on the machine.
func Files() (map[string]string, error) {
	files := map[string]string{}
	for _, name := range programs {
		path, err := exec.LookPath(name)
		if err != nil {
			return nil, fmt.Errorf("make image: %w", err)
		}
		files["/usr/bin/"+name] = path
		text, err := exec.CommandContext(context.Background(), "ldd", path).Output()
		if err != nil {
			return nil, fmt.Errorf("find libraries of %s: %w", path, err)
		}
		for _, library := range absolutePath().FindAllString(string(text), -1) {
			files[library] = library
		}
	}
	return files, nil
}

func importImage() (string, error) {
	files, err := Files()
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(context.Background(), "docker", "import", "-", ownImage)
	in, err := cmd.StdinPipe()
	if err != nil {
		return "", fmt.Errorf("import image: %w", err)
	}
	var problems bytes.Buffer
	cmd.Stderr = &problems
	if err := cmd.Start(); err != nil {
		return "", fmt.Errorf("import image: %w", err)
	}
	err = errors.Join(writeImage(in, files), in.Close())
	if err := errors.Join(err, cmd.Wait()); err != nil {
		return "", fmt.Errorf("import image: %w: %s", err, problems.String())
	}
	return ownImage, nil
}

var absolutePath = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`/\S+`) })

// writeImage writes the files with the directories that lead to them. Nobody
// makes /var/tmp: not every image has one.
func writeImage(out io.Writer, files map[string]string) error {
	w := tar.NewWriter(out)
	made := map[string]bool{"/": true}
	var directory func(at string, mode int64) error
	directory = func(at string, mode int64) error {
		if made[at] {
			return nil
		}
		if err := directory(filepath.Dir(at), 0o755); err != nil {
			return err
		}
		made[at] = true
		return w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: at[1:] + "/", Mode: mode})
	}
	err := errors.Join(directory("/tmp", 0o1777), directory("/proc", 0o755), directory("/sys", 0o755), directory("/dev", 0o755),
		directory("/etc", 0o755), directory("/data", 0o1777), directory("/usr/bin", 0o755))
	err = errors.Join(err, w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: "bin", Linkname: "usr/bin"}))
	made["/bin"] = true
	for _, top := range []string{"/lib", "/lib64"} {
		if to, readErr := os.Readlink(top); readErr == nil {
			made[top] = true
			to = strings.TrimPrefix(to, "/")
			err = errors.Join(err, w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: top[1:], Linkname: to}), directory("/"+to, 0o755))
		}
	}
	for _, at := range slices.Sorted(maps.Keys(files)) {
		content, readErr := os.ReadFile(files[at])
		err = errors.Join(err, readErr, directory(filepath.Dir(at), 0o755),
			w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: at[1:], Mode: 0o755, Size: int64(len(content))}))
		if err != nil {
			return err
		}
		if _, err := w.Write(content); err != nil {
			return err
		}
	}
	accounts := "root:x:0:0:root:/root:/bin/bash\n"
	err = errors.Join(err, w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "etc/passwd", Mode: 0o644, Size: int64(len(accounts))}))
	if err != nil {
		return err
	}
	if _, err := io.WriteString(w, accounts); err != nil {
		return err
	}
	return w.Close()
}
