package config

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/poolapi"
	"berth/slots"
)

func keys(t *testing.T, text ...string) Keys {
	t.Helper()
	k, err := ParseKeys(strings.Join(text, "\n"))
	require.NoError(t, err)
	return k
}

func open(t *testing.T, c Config) *Store {
	t.Helper()
	if c.Path == "" {
		c.Path = filepath.Join(t.TempDir(), "a b?#", "settings.db")
		require.NoError(t, os.MkdirAll(filepath.Dir(c.Path), 0o700))
	}
	s, err := Open(t.Context(), c)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, s.Close()) })
	return s
}

func kind(err error) slots.Kind { return slots.AsError(err).Kind }

func TestSettingsAreMadeCanonical(t *testing.T) {
	for _, c := range []struct {
		of         poolapi.SandboxType
		give, want string
	}{
		{"local", ``, `{"pip_requirements":[],"use_venv":false,"venv_name":"venv"}`},
		{"local", `null`, `{"pip_requirements":[],"use_venv":false,"venv_name":"venv"}`},
		{"local", `{"sandbox_dir":null,"use_venv":null}`, `{"pip_requirements":[],"use_venv":false,"venv_name":"venv"}`},
		{"local", `{"sandbox_dir":"/srv//x/"}`, `{"pip_requirements":[],"sandbox_dir":"/srv/x","use_venv":false,"venv_name":"venv"}`},
		{"isolated", `{ "timeout_s" : 60, "pip_requirements":[{"version":null,"name":"x"}] }`, `{"npm_requirements":[],"pip_requirements":[{"name":"x"}],"timeout_s":60}`},
		{"isolated", `{"template":"é<&>"}`, `{"npm_requirements":[],"pip_requirements":[],"template":"é<&>","timeout_s":300}`},
		{"isolated", `{"npm_requirements":[{"name":"@a/b","version":"^1.2"}]}`, `{"npm_requirements":[{"name":"@a/b","version":"^1.2"}],"pip_requirements":[],"timeout_s":300}`},
	} {
		got, err := Canonical(c.of, json.RawMessage(c.give))
		require.NoError(t, err, c.give)
		assert.Equal(t, c.want, string(got))
		again, err := Canonical(c.of, got)
		require.NoError(t, err)
		assert.Equal(t, c.want, string(again), "what is canonical stays")
	}
}

func TestSettingsThatCannotBeAreRefused(t *testing.T) {
	for _, c := range []struct {
		of         poolapi.SandboxType
		give, want string
	}{
		{"local", `[]`, "config must be an object"},
		{"local", `{"template":"x"}`, `unknown field "template"`},
		{"local", `{"sandbox_dir":"x"}`, "sandbox_dir must be an absolute path"},
		{"local", `{"venv_name":"../x"}`, "venv_name"},
		{"local", `{"venv_name":""}`, "venv_name"},
		{"local", `{"use_venv":"yes"}`, "use_venv must be true or false"},
		{"local", `{"pip_requirements":[{"name":"-r/etc/passwd"}]}`, "pip_requirements: "},
		{"local", `{"pip_requirements":[{"name":"x","version":"1; rm -rf /"}]}`, "pip_requirements: "},
		{"local", `{"pip_requirements":[{"name":"Y_y","version":"1"},{"name":"y-y","version":"2"}]}`, "pip_requirements: "},
		{"isolated", `{"timeout_s":0}`, "timeout_s must be 1 to 86400"},
		{"isolated", `{"timeout_s":1.5}`, "timeout_s must be an integer"},
		{"isolated", `{"npm_requirements":[{"name":"../x"}]}`, "npm_requirements: "},
		{"isolated", `{"use_venv":true}`, `unknown field "use_venv"`},
		{"e2b", `{}`, "type must be local or isolated"},
	} {
		_, err := Canonical(c.of, json.RawMessage(c.give))
		require.ErrorContains(t, err, c.want, c.give)
		assert.Equal(t, slots.KindBadRequest, kind(err), c.give)
	}
}

// The figures are those of Python's
// int(sha256(json.dumps(x, sort_keys=True, separators=(",", ":")).encode()).hexdigest(), 16).
func TestFingerprintsAreThoseOfOthers(t *testing.T) {
	for _, c := range []struct {
		organization string
		of           poolapi.SandboxType
		config, want string
	}{
		{"default", "isolated", `{"npm_requirements":[],"pip_requirements":[],"timeout_s":300}`, "82809490526529049826135529837287946097393542944566613350446679163596262887975"},
		{"org-ü", "local", `{"pip_requirements":[{"name":"x","version":"==1"}],"sandbox_dir":"/srv/é\"\\<&>\u007f\u2028😀\t","use_venv":true,"venv_name":"venv"}`, "55907776214117287951315769212682060957841885182742971274252746289756414601508"},
	} {
		got, err := Fingerprint(c.organization, c.of, json.RawMessage(c.config))
		require.NoError(t, err)
		assert.Equal(t, c.want, got)
	}
}

func TestAConfigIsReplacedAndKeepsItsID(t *testing.T) {
	s, ctx := open(t, Config{}), t.Context()
	_, err := s.Put(ctx, "acme", "", nil)
	require.ErrorContains(t, err, "type is missing")
	_, err = s.Put(ctx, "../x", "local", nil)
	require.ErrorContains(t, err, "names no organization")
	first, err := s.Put(ctx, "acme", "e2b", json.RawMessage(`{"timeout_s":60}`))
	require.NoError(t, err)
	assert.Equal(t, poolapi.SandboxIsolated, first.Type)
	assert.Regexp(t, `^sandbox-[0-9a-f-]{36}$`, first.ID)
	second, err := s.Put(ctx, "acme", "isolated", json.RawMessage(`{"timeout_s":61}`))
	require.NoError(t, err)
	assert.Equal(t, first.ID, second.ID)
	assert.NotEqual(t, first.Fingerprint, second.Fingerprint)
	assert.Equal(t, first.CreatedAt, second.CreatedAt)
	third, err := s.Put(ctx, "acme", "isolated", json.RawMessage(`{"timeout_s":60,"template":null}`))
	require.NoError(t, err)
	assert.Equal(t, first.Fingerprint, third.Fingerprint, "it is the first config again")
	same, err := s.Put(ctx, "acme", "isolated", json.RawMessage(`{"timeout_s":60}`))
	require.NoError(t, err)
	assert.Equal(t, third, same, "what changes nothing is no change")
	other, err := s.Put(ctx, "globex", "isolated", json.RawMessage(`{"timeout_s":60}`))
	require.NoError(t, err)
	assert.NotEqual(t, first.Fingerprint, other.Fingerprint)
}

func TestADefaultIsMadeOnceHoweverManyAsk(t *testing.T) {
	s := open(t, Config{})
	ids := make([]string, 16)
	var all sync.WaitGroup
	for i := range ids {
		all.Go(func() {
			c, err := s.Default(context.Background(), "acme", []poolapi.SandboxType{"isolated", "e2b"}[i%2])
			assert.NoError(t, err)
			ids[i] = c.ID
		})
	}
	all.Wait()
	assert.Len(t, slices.Compact(slices.Sorted(slices.Values(ids))), 1)
	set, err := s.Put(t.Context(), "acme", "isolated", json.RawMessage(`{"timeout_s":7}`))
	require.NoError(t, err)
	got, err := s.Default(t.Context(), "acme", "isolated")
	require.NoError(t, err)
	assert.Equal(t, set, got, "what there is stays as it is")
}

func TestConfigsAreListedByCreationPageByPage(t *testing.T) {
	s, ctx := open(t, Config{}), t.Context()
	a, err := s.Default(ctx, "acme", "local")
	require.NoError(t, err)
	foreign, err := s.Default(ctx, "globex", "local")
	require.NoError(t, err)
	b, err := s.Default(ctx, "acme", "isolated")
	require.NoError(t, err)

	list, after, err := s.List(ctx, "acme", "", Page{})
	require.NoError(t, err)
	assert.Equal(t, []poolapi.SandboxConfig{a, b}, list)
	assert.Empty(t, after)
	list, after, err = s.List(ctx, "acme", "", Page{Limit: 1})
	require.NoError(t, err)
	assert.Equal(t, []poolapi.SandboxConfig{a}, list)
	list, after, err = s.List(ctx, "acme", "", Page{Limit: 1, After: after})
	require.NoError(t, err)
	assert.Equal(t, []poolapi.SandboxConfig{b}, list)
	assert.Empty(t, after)
	list, _, err = s.List(ctx, "acme", "e2b", Page{})
	require.NoError(t, err)
	assert.Equal(t, []poolapi.SandboxConfig{b}, list)
	list, _, err = s.List(ctx, "nobody", "", Page{})
	require.NoError(t, err)
	assert.Empty(t, list)
	assert.NotNil(t, list)

	_, _, err = s.List(ctx, "acme", "", Page{After: foreign.ID})
	assert.Equal(t, slots.KindNotFound, kind(err))
	_, _, err = s.List(ctx, "acme", "", Page{Limit: 1001})
	assert.Equal(t, slots.KindBadRequest, kind(err))
	_, _, err = s.List(ctx, "acme", "docker", Page{})
	assert.Equal(t, slots.KindBadRequest, kind(err))
}

func TestAPatchMerges(t *testing.T) {
	s, ctx := open(t, Config{}), t.Context()
	c, err := s.Put(ctx, "acme", "isolated", json.RawMessage(`{"template":"gpu","timeout_s":60}`))
	require.NoError(t, err)
	patch := func(organization, of, settings string) (poolapi.SandboxConfig, error) {
		return s.Patch(ctx, organization, c.ID, poolapi.SandboxConfigRequest{Type: poolapi.SandboxType(of), Config: json.RawMessage(settings)})
	}
	got, err := patch("acme", "", `{"pip_requirements":[{"name":"x"}]}`)
	require.NoError(t, err)
	assert.JSONEq(t, `{"template":"gpu","timeout_s":60,"npm_requirements":[],"pip_requirements":[{"name":"x"}]}`, string(got.Config))
	got, err = patch("acme", "e2b", `{"timeout_s":null,"template":null,"pip_requirements":null}`)
	require.NoError(t, err)
	assert.JSONEq(t, `{"timeout_s":300,"npm_requirements":[],"pip_requirements":[]}`, string(got.Config))
	def, err := Fingerprint("acme", "isolated", got.Config)
	require.NoError(t, err)
	assert.Equal(t, def, got.Fingerprint)

	const mismatched = "Mismatched type for sandbox config update"
	_, err = patch("acme", "local", `{}`)
	require.ErrorContains(t, err, mismatched)
	_, err = patch("acme", "", `{"use_venv":true}`)
	require.ErrorContains(t, err, mismatched)
	assert.Equal(t, slots.KindBadRequest, kind(err))
	_, err = patch("acme", "", `{"nothing":1}`)
	require.ErrorContains(t, err, "unknown field")
	_, err = patch("globex", "", `{}`)
	assert.Equal(t, slots.KindNotFound, kind(err))
	now, err := s.Get(ctx, "acme", c.ID)
	require.NoError(t, err)
	assert.Equal(t, got, now, "what was refused changed nothing")
}

func TestDeletingAConfigTakesItsVariablesAlong(t *testing.T) {
	s, ctx := open(t, Config{Plaintext: true}), t.Context()
	c, err := s.Default(ctx, "acme", "local")
	require.NoError(t, err)
	v, err := s.PutVariable(ctx, "acme", c.ID, poolapi.EnvironmentVariableRequest{Key: "A", Value: "b"})
	require.NoError(t, err)
	assert.Equal(t, slots.KindNotFound, kind(s.Delete(ctx, "globex", c.ID)))
	require.NoError(t, s.Delete(ctx, "acme", c.ID))
	assert.Equal(t, slots.KindNotFound, kind(s.Delete(ctx, "acme", c.ID)))
	assert.Equal(t, slots.KindNotFound, kind(s.DeleteVariable(ctx, "acme", v.ID)))
	n := -1
	require.NoError(t, s.db.QueryRowContext(ctx, "SELECT count(*) FROM environment_variables").Scan(&n))
	assert.Zero(t, n)
}

func TestVariablesChangeNoFingerprint(t *testing.T) {
	s, ctx := open(t, Config{Keys: keys(t, NewKey())}), t.Context()
	c, err := s.Default(ctx, "acme", "local")
	require.NoError(t, err)
	_, err = s.PutVariable(ctx, "acme", c.ID, poolapi.EnvironmentVariableRequest{Key: "A", Value: "b"})
	require.NoError(t, err)
	now, err := s.Get(ctx, "acme", c.ID)
	require.NoError(t, err)
	assert.Equal(t, c, now)
}

func TestVariablesAreUpsertedByKeyAndAreNotLimitedInNumber(t *testing.T) {
	s, ctx := open(t, Config{Keys: keys(t, NewKey())}), t.Context()
	c, err := s.Default(ctx, "acme", "isolated")
	require.NoError(t, err)
	put := func(key, value, description string) Variable {
		v, err := s.PutVariable(ctx, "acme", c.ID, poolapi.EnvironmentVariableRequest{Key: key, Value: value, Description: description})
		require.NoError(t, err)
		return v
	}
	first := put("A", "1", "one")
	assert.Regexp(t, `^sandbox-env-[0-9a-f-]{36}$`, first.ID)
	assert.Equal(t, "acme", first.Organization)
	second := put("A", "2", "")
	assert.Equal(t, first.ID, second.ID)
	assert.Empty(t, second.Description)
	want := map[string]Secret{"A": "2"}
	for i := range 120 {
		key := fmt.Sprintf("V%d", i)
		put(key, key, "")
		want[key] = Secret(key)
	}
	env, err := s.Environment(ctx, "acme", c.ID)
	require.NoError(t, err)
	assert.Equal(t, want, env, "a list that ends after fifty would lose some")

	list, after, err := s.Variables(ctx, "acme", c.ID, Page{Limit: 100}, false)
	require.NoError(t, err)
	assert.Len(t, list, 100)
	assert.Equal(t, "A", list[0].Key)
	assert.Empty(t, list[0].Value, "nobody asked for it")
	list, after, err = s.Variables(ctx, "acme", c.ID, Page{Limit: 100, After: after}, true)
	require.NoError(t, err)
	assert.Len(t, list, 21)
	assert.Equal(t, Secret("V119"), list[20].Value)
	assert.Empty(t, after)
}

func TestVariablesArePatched(t *testing.T) {
	s, ctx := open(t, Config{Keys: keys(t, NewKey())}), t.Context()
	c, err := s.Default(ctx, "acme", "isolated")
	require.NoError(t, err)
	v, err := s.PutVariable(ctx, "acme", c.ID, poolapi.EnvironmentVariableRequest{Key: "A", Value: "1", Description: "one"})
	require.NoError(t, err)
	_, err = s.PutVariable(ctx, "acme", c.ID, poolapi.EnvironmentVariableRequest{Key: "TAKEN", Value: "1"})
	require.NoError(t, err)
	text := func(s string) *string { return &s }
	_, err = s.PatchVariable(ctx, "acme", v.ID, poolapi.EnvironmentVariablePatch{Key: text("B")})
	require.NoError(t, err)
	env, err := s.Environment(ctx, "acme", c.ID)
	require.NoError(t, err)
	assert.Equal(t, map[string]Secret{"B": "1", "TAKEN": "1"}, env, "under its new key it has its value")
	got, err := s.PatchVariable(ctx, "acme", v.ID, poolapi.EnvironmentVariablePatch{Value: text("")})
	require.NoError(t, err)
	assert.Equal(t, "one", got.Description)
	env, err = s.Environment(ctx, "acme", c.ID)
	require.NoError(t, err)
	assert.Equal(t, map[string]Secret{"B": "", "TAKEN": "1"}, env)

	for patch, want := range map[poolapi.EnvironmentVariablePatch]slots.Kind{
		{Key: text("TAKEN")}: slots.KindConflict, {Key: text("1A")}: slots.KindBadRequest, {Value: text("\x00")}: slots.KindBadRequest,
	} {
		_, err = s.PatchVariable(ctx, "acme", v.ID, patch)
		assert.Equal(t, want, kind(err))
	}
	_, err = s.PatchVariable(ctx, "globex", v.ID, poolapi.EnvironmentVariablePatch{Value: text("x")})
	assert.Equal(t, slots.KindNotFound, kind(err))
	assert.Equal(t, slots.KindNotFound, kind(s.DeleteVariable(ctx, "globex", v.ID)))
	_, err = s.PutVariable(ctx, "globex", c.ID, poolapi.EnvironmentVariableRequest{Key: "A", Value: "1"})
	assert.Equal(t, slots.KindNotFound, kind(err))
	_, _, err = s.Variables(ctx, "globex", c.ID, Page{}, true)
	assert.Equal(t, slots.KindNotFound, kind(err))
	require.NoError(t, s.DeleteVariable(ctx, "acme", v.ID))
	env, err = s.Environment(ctx, "acme", c.ID)
	require.NoError(t, err)
	assert.Equal(t, map[string]Secret{"TAKEN": "1"}, env)
}

func TestVariablesThatNoProcessCanHaveAreRefused(t *testing.T) {
	for _, c := range []struct{ key, value, want string }{
		{"", "x", "no key of a variable"},
		{"1A", "x", "no key of a variable"},
		{"A-B", "x", "no key of a variable"},
		{"A=B", "x", "no key of a variable"},
		{"É", "x", "no key of a variable"},
		{"A\n", "x", "no key of a variable"},
		{"A", "top\x00secret", "zero byte"},
		{"A", strings.Repeat("x", maxVariable), "a process can have"},
	} {
		err := CheckVariable(c.key, c.value)
		require.ErrorContains(t, err, c.want)
		assert.NotContains(t, err.Error(), "secret")
		assert.Less(t, len(err.Error()), 300)
	}
	assert.NoError(t, CheckVariable("_a9", ""))
}

func TestOrganizationsAreThereWithoutBeingMade(t *testing.T) {
	s, ctx := open(t, Config{}), t.Context()
	yes, no := true, false
	o, err := s.Organization(ctx, "acme")
	require.NoError(t, err)
	assert.Equal(t, poolapi.Organization{ID: "acme"}, o)
	for _, to := range []*bool{&yes, nil, &no} {
		o, err = s.PatchOrganization(ctx, "acme", poolapi.OrganizationPatch{PrivilegedTools: to})
		require.NoError(t, err)
		assert.Equal(t, to != &no, o.PrivilegedTools, "it is set both ways, and stays where nothing is said")
	}
	for _, id := range []string{"", ".", "..", "a/b", "-x", "a b", strings.Repeat("x", 129), "a\n"} {
		_, err = s.Organization(ctx, id)
		assert.Equal(t, slots.KindBadRequest, kind(err), "%q", id)
	}
}

func TestAFileThatANewerProgramWroteIsNotTouched(t *testing.T) {
	path := filepath.Join(t.TempDir(), "settings.db")
	s := open(t, Config{Path: path})
	_, err := s.db.ExecContext(t.Context(), "PRAGMA user_version = 99")
	require.NoError(t, err)
	_, err = Open(t.Context(), Config{Path: path})
	require.ErrorContains(t, err, "a newer one has written it")
	require.ErrorIs(t, err, ErrForeign)
	require.NoError(t, os.WriteFile(path+"x", []byte("this is not a database, and long enough to be seen as none at all"), 0o600))
	_, err = Open(t.Context(), Config{Path: path + "x"})
	require.ErrorIs(t, err, ErrForeign)
	_, err = Open(t.Context(), Config{Path: filepath.Join(path, "x")})
	require.Error(t, err)
	assert.NotErrorIs(t, err, ErrForeign, "what cannot be opened may be ours")
}

func TestTheFileIsItsOwnersAloneAndLasts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "settings.db")
	s, err := Open(t.Context(), Config{Path: path})
	require.NoError(t, err)
	c, err := s.Default(t.Context(), "acme", "local")
	require.NoError(t, err)
	var mode string
	require.NoError(t, s.db.QueryRowContext(t.Context(), "PRAGMA journal_mode").Scan(&mode))
	assert.Equal(t, "wal", mode)
	files, err := filepath.Glob(path + "*")
	require.NoError(t, err)
	assert.Len(t, files, 3)
	for _, name := range files {
		st, err := os.Stat(name)
		require.NoError(t, err)
		assert.Equal(t, os.FileMode(0o600), st.Mode().Perm(), name)
	}
	second := open(t, Config{Path: path}) // another process would do the same
	got, err := second.Get(t.Context(), "acme", c.ID)
	require.NoError(t, err)
	assert.Equal(t, c, got)
	require.NoError(t, s.Close())
}

func TestManyOpenAFileThatIsNotThereYet(t *testing.T) {
	path := filepath.Join(t.TempDir(), "settings.db")
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			s, err := Open(t.Context(), Config{Path: path})
			if err != nil {
				assert.Fail(t, "it does not open", "%v", err)
				return
			}
			_, err = s.Default(t.Context(), "acme", "local")
			assert.NoError(t, err)
			assert.NoError(t, s.Close())
		})
	}
	all.Wait()
	list, _, err := open(t, Config{Path: path}).List(t.Context(), "acme", "", Page{})
	require.NoError(t, err)
	assert.Len(t, list, 1)
}

func TestTheTablesHoldWhatTheRulesSay(t *testing.T) {
	s := open(t, Config{})
	_, err := s.db.ExecContext(t.Context(), `INSERT INTO environment_variables (id, sandbox_config_id, key, sealed, created_at, updated_at) VALUES ('a','nobody','K','x','','')`)
	require.ErrorContains(t, err, "FOREIGN KEY")
}
