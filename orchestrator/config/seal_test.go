package config

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/poolapi"
	"berth/slots"
)

// planted is what must be nowhere but in answers to whom it belongs.
const planted = "hunter2-hunter2-hunter2"

func plant(t *testing.T, s *Store, value string) (configID string, v Variable) {
	t.Helper()
	c, err := s.Default(t.Context(), "acme", "isolated")
	require.NoError(t, err)
	v, err = s.PutVariable(t.Context(), "acme", c.ID, poolapi.EnvironmentVariableRequest{Key: "K", Value: value})
	require.NoError(t, err)
	return c.ID, v
}

// onDisk is all that the store and SQLite have written.
func onDisk(t *testing.T, path string) string {
	t.Helper()
	files, err := filepath.Glob(path + "*")
	require.NoError(t, err)
	var all strings.Builder
	for _, name := range files {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		all.Write(text)
	}
	return all.String()
}

func TestWithoutAKeyNothingIsStored(t *testing.T) {
	s := open(t, Config{})
	c, err := s.Default(t.Context(), "acme", "isolated")
	require.NoError(t, err)
	_, err = s.PutVariable(t.Context(), "acme", c.ID, poolapi.EnvironmentVariableRequest{Key: "K", Value: planted})
	require.ErrorIs(t, err, ErrNoKey)
	assert.NotContains(t, err.Error(), planted)
	list, _, err := s.Variables(t.Context(), "acme", c.ID, Page{}, true)
	require.NoError(t, err)
	assert.Empty(t, list)
	_, err = s.Reseal(t.Context())
	assert.ErrorIs(t, err, ErrNoKey)
}

func TestValuesAreSealedOnDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "settings.db")
	s := open(t, Config{Path: path, Keys: keys(t, NewKey())})
	id, v := plant(t, s, planted)
	env, err := s.Environment(t.Context(), "acme", id)
	require.NoError(t, err)
	assert.Equal(t, planted, env["K"].Reveal())
	first := stored(t, s, v.ID)
	assert.Regexp(t, `^enc:v1:[0-9a-f]{8}:`, first)
	assert.NotContains(t, onDisk(t, path), planted)
	plant(t, s, planted)
	assert.NotEqual(t, first, stored(t, s, v.ID), "the same value is not sealed alike")
}

func stored(t *testing.T, s *Store, id string) string {
	t.Helper()
	var text string
	require.NoError(t, s.db.QueryRowContext(t.Context(), "SELECT sealed FROM environment_variables WHERE id = ?", id).Scan(&text))
	return text
}

func TestKeysAreRotated(t *testing.T) {
	path, old, fresh := filepath.Join(t.TempDir(), "settings.db"), NewKey(), NewKey()
	id, v := plant(t, open(t, Config{Path: path, Plaintext: true}), planted)
	assert.Contains(t, onDisk(t, path), planted, "as it was told to")
	first := open(t, Config{Path: path, Keys: keys(t, old)})
	n, err := first.Reseal(t.Context())
	require.NoError(t, err)
	assert.Equal(t, 1, n)
	assert.NotContains(t, onDisk(t, path), planted, "nor anywhere beside it")
	before := stored(t, first, v.ID)

	both := open(t, Config{Path: path, Keys: keys(t, fresh, old)})
	env, err := both.Environment(t.Context(), "acme", id)
	require.NoError(t, err)
	assert.Equal(t, planted, env["K"].Reveal(), "the older key opens")
	n, err = both.Reseal(t.Context())
	require.NoError(t, err)
	assert.Equal(t, 1, n)
	n, err = both.Reseal(t.Context())
	require.NoError(t, err)
	assert.Zero(t, n)
	assert.NotEqual(t, before, stored(t, both, v.ID))

	alone := open(t, Config{Path: path, Keys: keys(t, fresh)})
	env, err = alone.Environment(t.Context(), "acme", id)
	require.NoError(t, err)
	assert.Equal(t, planted, env["K"].Reveal(), "the older key is not needed any more")
	_, err = first.Environment(t.Context(), "acme", id)
	require.ErrorContains(t, err, "was sealed with key")
	assert.Equal(t, slots.KindInternal, kind(err))
	_, err = first.Reseal(t.Context())
	require.Error(t, err)
	_, err = alone.Environment(t.Context(), "acme", id)
	require.NoError(t, err, "what was not resealed is as it was")
}

func TestAFileIsNotOpenedWithoutTheKeyOfItsValues(t *testing.T) {
	path, right, wrong := filepath.Join(t.TempDir(), "settings.db"), NewKey(), NewKey()
	first := open(t, Config{Path: path, Keys: keys(t, right)})
	id, v := plant(t, first, planted)
	before := stored(t, first, v.ID)
	for name, c := range map[string]Config{"another": {Keys: keys(t, wrong)}, "none": {}, "none is needed": {Plaintext: true}} {
		c.Path = path
		_, err := Open(t.Context(), c)
		require.ErrorIs(t, err, ErrOtherKey, name)
		require.ErrorContains(t, err, "1 with key "+strings.Split(before, ":")[2], name)
		assert.NotContains(t, err.Error(), planted)
	}
	assert.Equal(t, before, stored(t, first, v.ID))
	env, err := open(t, Config{Path: path, Keys: keys(t, wrong, right)}).Environment(t.Context(), "acme", id)
	require.NoError(t, err, "it is one of them")
	assert.Equal(t, planted, env["K"].Reveal())
}

func TestSealedTextIsBoundToItsPlace(t *testing.T) {
	s := open(t, Config{Keys: keys(t, NewKey())})
	id, v := plant(t, s, planted)
	_, err := s.PutVariable(t.Context(), "acme", id, poolapi.EnvironmentVariableRequest{Key: "L", Value: "other"})
	require.NoError(t, err)
	_, err = s.db.ExecContext(t.Context(), "UPDATE environment_variables SET sealed = ? WHERE key = 'L'", stored(t, s, v.ID))
	require.NoError(t, err)
	_, err = s.Environment(t.Context(), "acme", id)
	require.ErrorContains(t, err, "damaged, or was moved")

	for _, text := range []string{"", "x", "enc:v2:00000000:AA==", strings.Replace(stored(t, s, v.ID), ":", "", 1), stored(t, s, v.ID)[:40]} {
		_, err := s.config.Keys.open(place(v.ID), text)
		require.Error(t, err, "%q", text)
	}
}

func TestFilesOfKeysAreRead(t *testing.T) {
	dir, key := t.TempDir(), NewKey()
	write := func(text string, mode os.FileMode) string {
		path := filepath.Join(dir, "keys")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		require.NoError(t, os.Chmod(path, mode))
		return path
	}
	k, err := ReadKeys("")
	require.NoError(t, err)
	assert.True(t, k.Empty())
	k, err = ReadKeys(write("# mine\n\n "+key+"\r\n"+NewKey()+"\n", 0o600))
	require.NoError(t, err)
	assert.Equal(t, "2 keys", k.String())
	k, err = ReadKeys(write(" \n", 0o600))
	require.NoError(t, err)
	assert.True(t, k.Empty(), "an empty file is as none")
	for text, want := range map[string]string{
		"#\n": "there is no key", "c2hvcnQ=": "line 1: want 32 bytes in base64",
		key + "\n" + planted: "line 2: want 32 bytes", strings.Repeat("A", 1<<17): "too long",
	} {
		_, err := ReadKeys(write(text, 0o600))
		require.ErrorContains(t, err, want)
		assert.NotContains(t, err.Error(), planted)
		assert.NotContains(t, err.Error(), key)
	}
	_, err = ReadKeys(write(key, 0o644))
	require.ErrorContains(t, err, "may be read by others")
	_, err = ReadKeys(filepath.Join(dir, "nothing"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestSecretsAreNotPrinted(t *testing.T) {
	key := NewKey()
	k := keys(t, key)
	secret := Secret(planted)
	v := Variable{Key: "K", Value: secret}
	text, err := json.Marshal(map[string]any{"v": v.Value, "m": map[string]Secret{"a": secret}})
	require.NoError(t, err)
	printed := string(text)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		printed += fmt.Sprintf(verb, secret) + fmt.Sprintf(verb, v) + fmt.Sprintf(verb, &v) + fmt.Sprintf(verb, map[string]Secret{"K": secret}) + fmt.Sprintf(verb, Config{Keys: k})
	}
	assert.NotContains(t, printed, planted)
	assert.NotContains(t, printed, fmt.Sprintf("%x", planted))
	assert.NotContains(t, printed, key)
	assert.Contains(t, printed, "(redacted)")
}
