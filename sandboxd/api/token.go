package api

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// ReadToken reads the bearer token that both sides of the wire hold from a
// file, and refuses one that others may read. Without a path there is none: "".
func ReadToken(path string) (string, error) {
	token, err := readToken(path)
	if err == nil && token == "" && path != "" {
		return "", fmt.Errorf("read token: %s is empty", path)
	}
	return token, err
}

// ReadMetricsToken reads the token that opens the metrics and nothing else from
// a file, and refuses one that others may read, or that is one of the others,
// which open more. There is none, "", without a path and in an empty file.
func ReadMetricsToken(path string, others ...string) (string, error) {
	token, err := readToken(path)
	if err != nil {
		return "", fmt.Errorf("token of metrics: %w", err)
	}
	if token != "" && slices.Contains(others, token) {
		return "", fmt.Errorf("token of metrics: that in %s opens more than metrics: give another one", path)
	}
	return token, nil
}

// readToken reads a file that nobody else may read, without the white space
// around what it holds.
func readToken(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	st, err := os.Stat(path)
	if err != nil {
		return "", fmt.Errorf("read token: %w", err)
	}
	if st.Mode().IsRegular() && st.Mode().Perm()&0o007 != 0 {
		return "", fmt.Errorf("read token: %s may be read by others (mode %#o): chmod 600 it", path, st.Mode().Perm())
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read token: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}
