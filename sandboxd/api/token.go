package api

import (
	"fmt"
	"os"
	"strings"
)

// ReadToken reads the bearer token that both sides of the wire hold from a
// file, and refuses one that others may read. Without a path there is none: "".
func ReadToken(path string) (string, error) {
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
	token := strings.TrimSpace(string(text))
	if token == "" {
		return "", fmt.Errorf("read token: %s is empty", path)
	}
	return token, nil
}
