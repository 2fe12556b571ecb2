package config

import (
	"bufio"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
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
// may read is refused. Without a path there are no keys.
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
		id := hex.EncodeToString(sum[:4])
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

// current reports whether the stored text is as seal would store it now.
func (k Keys) current(stored string) bool {
	return k.newest != "" && strings.HasPrefix(stored, prefixSealed+k.newest+":")
}
