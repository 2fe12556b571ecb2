package orchestrator

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/httpapi"
)

func TestTokensOfOrganizationsAreReadLineByLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens")
	for _, c := range []struct {
		text string
		want []httpapi.BoundToken
		err  string
	}{
		{"acme secret-1\n", []httpapi.BoundToken{{Token: "secret-1", Organizations: []string{"acme"}}}, ""},
		{"# theirs\n\nacme,globex\tsecret 1 \r\nx #2\n", []httpapi.BoundToken{
			{Token: "secret 1", Organizations: []string{"acme", "globex"}}, {Token: "#2", Organizations: []string{"x"}},
		}, ""},
		{"# nobody's\n", nil, ""},
		{"\n", nil, "is empty"},
		{"secret-1\n", nil, "line 1"},
		{"acme a\nse/cret-1 acme\n", nil, "line 2"},
		{"acme,,globex secret-1\n", nil, "line 1"},
		{"acme, globex secret-1\n", nil, "line 1"},
		{"acme secret-1\nglobex secret-1", nil, "line 2"},
		{"acme trainer's", nil, "there already"},
		{"acme operator's", nil, "there already"},
	} {
		require.NoError(t, os.WriteFile(path, []byte(c.text), 0o600))
		got, err := readBoundTokens(path, "trainer's", "operator's")
		if c.err == "" {
			require.NoError(t, err, c.text)
			assert.Equal(t, c.want, got, c.text)
			continue
		}
		require.ErrorContains(t, err, c.err, c.text)
		assert.NotContains(t, err.Error(), "cret-1", "a token is in no error")
	}
	require.NoError(t, os.Chmod(path, 0o604))
	_, err := readBoundTokens(path)
	require.ErrorContains(t, err, "may be read by others")
	none, err := readBoundTokens("")
	require.NoError(t, err)
	assert.Empty(t, none)
	_, err = parse([]string{"--organization-token-file", path})
	require.ErrorIs(t, err, ErrUsage, "without a token anybody may name any organization")
	c, err := parse([]string{"--token-file", path, "--organization-token-file", path})
	require.NoError(t, err)
	assert.NotContains(t, c.String(), path)
}

func TestTheTokenOfMetricsIsNoneOfTheOthers(t *testing.T) {
	dir := t.TempDir()
	at := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	c := Config{TokenFile: at("t", "secret-1"), OperatorTokenFile: at("o", "secret-2"), BoundTokenFile: at("b", "acme secret-3")}
	for text, want := range map[string]string{"": "", " \n": "", "looks-on\n": "looks-on"} {
		c.MetricsTokenFile = at("m", text)
		opens, err := c.readTokens()
		require.NoError(t, err)
		assert.Equal(t, httpapi.Config{
			Token: "secret-1", OperatorToken: "secret-2", MetricsToken: want, Bound: []httpapi.BoundToken{{Token: "secret-3", Organizations: []string{"acme"}}},
		}, opens)
	}
	for _, token := range []string{"secret-1", "secret-2", "secret-3"} {
		c.MetricsTokenFile = at("m", token)
		_, err := c.readTokens()
		require.ErrorContains(t, err, "opens more than metrics")
		assert.NotContains(t, err.Error(), token)
	}
	require.NoError(t, os.Chmod(c.MetricsTokenFile, 0o604))
	_, err := c.readTokens()
	require.ErrorContains(t, err, "may be read by others")
	c.MetricsTokenFile = filepath.Join(dir, "none")
	_, err = c.readTokens()
	require.ErrorContains(t, err, "no such file")
	assert.Contains(t, c.hidden(), c.MetricsTokenFile, "no slot on this machine reads it")
}
