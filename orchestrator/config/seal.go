package config

import (
	"bufio"
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"berth/slots"
)

// What a stored value begins with says how it is stored: as
// enc:v1:KEY:BASE64(nonce, AES-256-GCM), where KEY is the first bytes of the
// key's SHA-256, or as it is.
const (
	prefixSealed = "enc:v1:"
	prefixPlain  = "plain:v1:"
)

// idBytes are those of a key's SHA-256 that name it, two letters each.
const idBytes = 4

// KeyBytes is how long a key is.
const KeyBytes = 32

// Keys seal values and open them. The zero Keys hold none.
type Keys struct {
	newest string // that values are sealed with; "": there is none
	byID   map[string]cipher.AEAD
}

// NewKey makes a key, as a file of keys has it.
func NewKey() string {
	key := make([]byte, KeyBytes)
	_, _ = rand.Read(key) // it never fails
	return base64.StdEncoding.EncodeToString(key)
}

// ReadKeys reads a file of keys: one a line, each 32 bytes in base64. The first
// seals; what any of them has sealed is opened. Empty lines and those that
// begin with # count for nothing. A file that others than its owner and group
// may read is refused. Without a path, and in an empty file, there are no keys.
func ReadKeys(path string) (Keys, error) {
	if path == "" {
		return Keys{}, nil
	}
	st, err := os.Stat(path)
	if err != nil {
		return Keys{}, fmt.Errorf("read keys: %w", err)
	}
	if st.Mode().IsRegular() && st.Mode().Perm()&0o007 != 0 {
		return Keys{}, fmt.Errorf("read keys: %s may be read by others (mode %#o): chmod 600 it", path, st.Mode().Perm())
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return Keys{}, fmt.Errorf("read keys: %w", err)
	}
	if len(bytes.TrimSpace(text)) == 0 {
		return Keys{}, nil
	}
	keys, err := ParseKeys(string(text))
	if err != nil {
		return Keys{}, fmt.Errorf("read keys: %s: %w", path, err)
	}
	return keys, nil
}

// ParseKeys reads the text of a file of keys, see ReadKeys.
func ParseKeys(text string) (Keys, error) {
	keys := Keys{byID: map[string]cipher.AEAD{}}
	lines := bufio.NewScanner(strings.NewReader(text))
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		key, err := base64.StdEncoding.DecodeString(line)
		if err != nil || len(key) != KeyBytes {
			return Keys{}, fmt.Errorf("line %d: want %d bytes in base64", n, KeyBytes) // its text is not for messages
		}
		block, err := aes.NewCipher(key)
		if err != nil {
			return Keys{}, fmt.Errorf("line %d: %w", n, err)
		}
		gcm, err := cipher.NewGCM(block)
		if err != nil {
			return Keys{}, fmt.Errorf("line %d: %w", n, err)
		}
		sum := sha256.Sum256(key)
		id := hex.EncodeToString(sum[:idBytes])
		if keys.newest == "" {
			keys.newest = id
		}
		keys.byID[id] = gcm
	}
	if err := lines.Err(); err != nil {
		return Keys{}, errors.New("a line is too long for a key")
	}
	if keys.newest == "" {
		return Keys{}, errors.New("there is no key in it")
	}
	return keys, nil
}

// Empty reports whether there is no key.
func (k Keys) Empty() bool { return k.newest == "" }

// String says how many keys there are, and nothing of them.
func (k Keys) String() string { return fmt.Sprintf("%d keys", len(k.byID)) }

// GoString is String.
func (k Keys) GoString() string { return k.String() }

// seal makes of a value what is stored. It is bound to where it stands: sealed
// text that was moved to another place does not open there.
func (k Keys) seal(place string, value Secret) (string, error) {
	gcm := k.byID[k.newest]
	if gcm == nil {
		return "", ErrNoKey
	}
	nonce := make([]byte, gcm.NonceSize())
	_, _ = rand.Read(nonce) // it never fails
	sealed := gcm.Seal(nonce, nonce, []byte(value), []byte(place))
	return prefixSealed + k.newest + ":" + base64.StdEncoding.EncodeToString(sealed), nil
}

// open reads what is stored. No error holds anything of it.
func (k Keys) open(place, stored string) (Secret, error) {
	if plain, ok := strings.CutPrefix(stored, prefixPlain); ok {
		return Secret(plain), nil
	}
	rest, ok := strings.CutPrefix(stored, prefixSealed)
	if !ok {
		return "", slots.Errorf(slots.KindInternal, "a stored value has a form that this program does not know: a newer one may")
	}
	id, text, _ := strings.Cut(rest, ":")
	gcm := k.byID[id]
	if gcm == nil {
		return "", slots.Errorf(slots.KindInternal, "a stored value was sealed with key %.8s, which the file of keys does not hold", id)
	}
	sealed, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(sealed) < gcm.NonceSize() {
		return "", errDamaged
	}
	value, err := gcm.Open(nil, sealed[:gcm.NonceSize()], sealed[gcm.NonceSize():], []byte(place))
	if err != nil {
		return "", errDamaged
	}
	return Secret(value), nil
}

var errDamaged = slots.Errorf(slots.KindInternal, "a stored value is damaged, or was moved from another place")

// ErrNoKey is a value that there is no key to seal with.
var ErrNoKey = slots.Errorf(slots.KindDenied, "values are not stored without a key to seal them: start the orchestrator with --config-key-file, or with --config-plaintext to store them as they are")

// checkKeys is ErrOtherKey when there are values that no key opens.
func (s *Store) checkKeys(ctx context.Context) error {
	rows, err := s.db.QueryContext(
		ctx, "SELECT substr(sealed, ?, ?), count(*) FROM environment_variables WHERE sealed LIKE ? GROUP BY 1 ORDER BY 1",
		len(prefixSealed)+1, 2*idBytes, prefixSealed+"%",
	)
	if err != nil {
		return fmt.Errorf("read whose values they are: %w", err)
	}
	missing, err := collect(rows, func(from row) (string, error) {
		var id string
		var n int
		if err := from.Scan(&id, &n); err != nil || s.config.Keys.byID[id] != nil {
			return "", err
		}
		return fmt.Sprintf("%d with key %s", n, id), nil
	})
	if err != nil {
		return fmt.Errorf("read whose values they are: %w", err)
	}
	missing = slices.DeleteFunc(missing, func(one string) bool { return one == "" })
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s, and the file of keys holds %s: put the key back that they were sealed with, after the first", ErrOtherKey, strings.Join(missing, ", "), s.config.Keys.names())
}

// names are the keys' own, which tell nothing of them.
func (k Keys) names() string {
	if k.Empty() {
		return "none"
	}
	return strings.Join(slices.Sorted(maps.Keys(k.byID)), ", ")
}

// current reports whether the stored text is as seal would store it now.
func (k Keys) current(stored string) bool {
	return k.newest != "" && strings.HasPrefix(stored, prefixSealed+k.newest+":")
}
