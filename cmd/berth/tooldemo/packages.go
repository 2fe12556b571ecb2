package tooldemo

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"berth/orchestrator/poolapi"
)

// file is one of a package's.
type file struct{ name, text string }

const (
	pricesModule = `import berth_demo_money

PRICES = {"apple": 30, "pear": 45}


def total(item, count):
    return berth_demo_money.cents(PRICES[item] * count)
`
	moneyModule = `def cents(n):
    return "%d.%02d" % divmod(n, 100)
`
	wordsModule = "exports.plural = (word, count) => (count === 1 ? word : word + 's');\n"
)

// PlacePackages makes the directory "packages" in dir, with what the tools need.
// The builds, under uids of their own, can read what is there; nobody else can
// list dir.
func PlacePackages(dir string) (packages string, err error) {
	packages = filepath.Join(dir, "packages")
	if err := errors.Join(os.Mkdir(packages, 0o755), os.Chmod(packages, 0o755), os.Chmod(dir, 0o711)); err != nil { //nolint:gosec // see above
		return "", fmt.Errorf("make directory: %w", err)
	}
	return packages, WritePackages(packages)
}

// Variables are those of the sandbox config that the tools run with.
func Variables(packages string, secrets Secrets) []poolapi.EnvironmentVariableRequest {
	return []poolapi.EnvironmentVariableRequest{
		{Key: "PIP_FIND_LINKS", Value: packages},
		{Key: "PIP_NO_INDEX", Value: "1"},
		{Key: KeyVariable, Value: secrets.Key},
	}
}

// WritePackages puts into the directory what the tools need: two wheels, of
// which one needs the other, and an npm tarball.
func WritePackages(dir string) error {
	words, err := tarball([]file{
		{"package/package.json", `{"name":"berth-demo-words","version":"1.0.0","main":"index.js"}`},
		{"package/index.js", wordsModule},
	})
	if err != nil {
		return err
	}
	all := map[string][]byte{"berth-demo-words-1.0.0.tgz": words}
	for _, w := range []struct{ module, text, needs string }{
		{"berth_demo_prices", pricesModule, "Requires-Dist: berth-demo-money>=1\n"},
		{"berth_demo_money", moneyModule, ""},
	} {
		if all[w.module+"-1.0-py3-none-any.whl"], err = wheel(w.module, w.text, w.needs); err != nil {
			return err
		}
	}
	for name, text := range all {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil { //nolint:gosec // builds read it
			return fmt.Errorf("write package: %w", err)
		}
	}
	return nil
}

// wheel is a pure one, version 1.0, of one module.
func wheel(module, text, needs string) ([]byte, error) {
	about := module + "-1.0.dist-info/"
	files := []file{
		{module + ".py", text},
		{about + "METADATA", "Metadata-Version: 2.1\nName: " + module + "\nVersion: 1.0\n" + needs},
		{about + "WHEEL", "Wheel-Version: 1.0\nGenerator: berth\nRoot-Is-Purelib: true\nTag: py3-none-any\n"},
	}
	var record strings.Builder
	for _, f := range files {
		record.WriteString(f.name + ",,\n")
	}
	files = append(files, file{about + "RECORD", record.String() + about + "RECORD,,\n"})
	var b bytes.Buffer
	archive := zip.NewWriter(&b)
	for _, f := range files {
		w, err := archive.Create(f.name)
		if err == nil {
			_, err = w.Write([]byte(f.text))
		}
		if err != nil {
			return nil, fmt.Errorf("make wheel: %w", err)
		}
	}
	if err := archive.Close(); err != nil {
		return nil, fmt.Errorf("make wheel: %w", err)
	}
	return b.Bytes(), nil
}

func tarball(files []file) ([]byte, error) {
	var b bytes.Buffer
	packed := gzip.NewWriter(&b)
	archive := tar.NewWriter(packed)
	for _, f := range files {
		err := archive.WriteHeader(&tar.Header{Name: f.name, Mode: 0o644, Size: int64(len(f.text)), Typeflag: tar.TypeReg})
		if err == nil {
			_, err = archive.Write([]byte(f.text))
		}
		if err != nil {
			return nil, fmt.Errorf("make tarball: %w", err)
		}
	}
	if err := errors.Join(archive.Close(), packed.Close()); err != nil {
		return nil, fmt.Errorf("make tarball: %w", err)
	}
	return b.Bytes(), nil
}
