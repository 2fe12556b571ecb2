package api_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/sandboxd/api"
	"berth/slots"
)

func python(requirements ...api.Requirement) api.EnvironmentSpec {
	return api.EnvironmentSpec{Language: api.LanguagePython, Requirements: requirements}
}

func node(requirements ...api.Requirement) api.EnvironmentSpec {
	return api.EnvironmentSpec{Language: api.LanguageNode, Requirements: requirements}
}

func keyOf(t *testing.T, s api.EnvironmentSpec) string {
	t.Helper()
	key, err := s.Key()
	require.NoError(t, err)
	return key
}

func TestSpecsThatMeanTheSameHaveOneKey(t *testing.T) {
	want := keyOf(t, python(api.Requirement{Name: "typing-extensions", Version: "==4.1"}, api.Requirement{Name: "httpx[http2,socks]", Version: ">=0.2,<1"}))
	assert.True(t, api.IsEnvironmentKey(want), want)
	for _, same := range []api.EnvironmentSpec{
		python(api.Requirement{Name: "httpx[socks, http2]", Version: ">=0.2, <1"}, api.Requirement{Name: "Typing_Extensions", Version: " 4.1 "}),
		python(api.Requirement{Name: "HTTPX[socks,http2,Socks]", Version: ">=0.2,<1"}, api.Requirement{Name: "typing.extensions", Version: "== 4.1"}, api.Requirement{Name: "typing-extensions", Version: "4.1"}),
	} {
		for i := range same.Requirements {
			same.Requirements[i].Name = strings.ReplaceAll(same.Requirements[i].Name, " ", "")
		}
		same.Index = api.Index{ExtraIndexURLs: []string{}, FindLinks: []string{}}
		assert.Equal(t, want, keyOf(t, same), "%v", same)
	}
}

func TestWhateverChangesAnEnvironmentChangesItsKey(t *testing.T) {
	one := api.Requirement{Name: "a", Version: "1"}
	seen := map[string]bool{}
	for _, s := range []api.EnvironmentSpec{
		python(one), node(one), python(api.Requirement{Name: "a"}), python(api.Requirement{Name: "a", Version: "1.0"}),
		python(api.Requirement{Name: "a[b]", Version: "1"}), python(one, api.Requirement{Name: "b"}),
		{Language: api.LanguagePython, Version: "3.11", Requirements: []api.Requirement{one}},
		{Language: api.LanguagePython, Requirements: []api.Requirement{one}, Index: api.Index{IndexURL: "https://example.org/simple"}},
		{Language: api.LanguagePython, Requirements: []api.Requirement{one}, Index: api.Index{ExtraIndexURLs: []string{"https://example.org/simple"}}},
		{Language: api.LanguagePython, Requirements: []api.Requirement{one}, Index: api.Index{NPMRegistry: "https://example.org/simple"}},
		{Language: api.LanguagePython, Requirements: []api.Requirement{one}, Index: api.Index{FindLinks: []string{"/wheels"}}},
		{Language: api.LanguagePython, Requirements: []api.Requirement{one}, Index: api.Index{FindLinks: []string{"/wheels"}, NoIndex: true}},
	} {
		key := keyOf(t, s)
		assert.False(t, seen[key], "%v", s)
		seen[key] = true
	}
}

func TestNothingRequiredIsThePlainInterpreter(t *testing.T) {
	assert.Empty(t, keyOf(t, python()))
	assert.Empty(t, keyOf(t, api.EnvironmentSpec{Language: api.LanguageNode, Index: api.Index{NoIndex: true}}))
}

func TestHostileNamesAreRefused(t *testing.T) {
	for _, name := range []string{
		"", "-", "--index-url=x", "-r", "../x", "./x", "/etc/passwd", "a;b", "a b", "a\nb", "a&&b", "$(a)", "`a`", "a@1", "a==1", "a#b",
		"git+https://example.org/x", "https://example.org/x.whl", "file:x", "a[b", "a[]", "a[-b]", "a[b];c", "é", "a\x00", ".a", "a-", strings.Repeat("a", 300),
	} {
		_, err := python(api.Requirement{Name: name}).Key()
		require.Error(t, err, "%q", name)
		assert.Equal(t, slots.KindBadRequest, slots.AsError(err).Kind, "%q", name)
	}
	for _, name := range []string{
		"", "-g", "--registry=x", "../x", "./x", "/x", "~/x", "a;b", "a b", "a/b", "@a", "@a/", "@A/b", "@a/../b", "a@1", "git:x", "npm:x", "file:x", "a\nb", "$a", "é",
	} {
		_, err := node(api.Requirement{Name: name}).Key()
		require.Error(t, err, "%q", name)
		assert.Equal(t, slots.KindBadRequest, slots.AsError(err).Kind, "%q", name)
	}
}

func TestHostileVersionsAreRefused(t *testing.T) {
	for _, version := range []string{
		"--pre", "==", "1;2", ">=1;x", "1 --index-url", "@ file:///x", ">=1,", ",", "==1,-r", "$x", "1\x00", "=1", "../1", "==./x", strings.Repeat("1", 200),
	} {
		_, err := python(api.Requirement{Name: "a", Version: version}).Key()
		require.Error(t, err, "%q", version)
		assert.Equal(t, slots.KindBadRequest, slots.AsError(err).Kind, "%q", version)
	}
	for _, version := range []string{
		"-g", "--x", "git+ssh://x", "file:../x", "npm:x@1", "http://x", "user/repo", "../x", "1;2", "$x", "1\x00", strings.Repeat("1", 200),
	} {
		_, err := node(api.Requirement{Name: "a", Version: version}).Key()
		require.Error(t, err, "%q", version)
		assert.Equal(t, slots.KindBadRequest, slots.AsError(err).Kind, "%q", version)
	}
}

func TestUsualVersionsAreTaken(t *testing.T) {
	for version, want := range map[string]string{
		"": "a", "1.2.3": "a==1.2.3", "==1.*": "a==1.*", ">=1, <2, !=1.5": "a>=1,<2,!=1.5", "~=1.4": "a~=1.4", "===1.0+local": "a===1.0+local", "1!2.0": "a==1!2.0",
	} {
		n, err := python(api.Requirement{Name: "A", Version: version}).Normalized()
		require.NoError(t, err, version)
		assert.Equal(t, want, n.Requirements[0].Argument(api.LanguagePython))
	}
	for version, want := range map[string]string{
		"": "@x/a", "1.2.3": "@x/a@1.2.3", "^1.0.0-rc.1": "@x/a@^1.0.0-rc.1", ">=1  <2": "@x/a@>=1 <2", "1 || 2": "@x/a@1 || 2", "latest": "@x/a@latest", "*": "@x/a@*",
	} {
		n, err := node(api.Requirement{Name: "@x/a", Version: version}).Normalized()
		require.NoError(t, err, version)
		assert.Equal(t, want, n.Requirements[0].Argument(api.LanguageNode))
	}
}

func TestSpecsThatContradictThemselvesOrAreTooLargeAreRefused(t *testing.T) {
	many := make([]api.Requirement, 501)
	for i := range many {
		many[i].Name = "a"
	}
	for name, s := range map[string]api.EnvironmentSpec{
		"no language":         {Requirements: []api.Requirement{{Name: "a"}}},
		"strange language":    {Language: "ruby"},
		"strange interpreter": {Language: api.LanguagePython, Version: "3; rm"},
		"interpreter a path":  {Language: api.LanguagePython, Version: "../python"},
		"two versions":        python(api.Requirement{Name: "a-b"}, api.Requirement{Name: "a-b-c"}, api.Requirement{Name: "A_b", Version: "2"}),
		"too many":            python(many...),
		"index":               {Language: api.LanguagePython, Index: api.Index{IndexURL: "ftp://x/"}},
		"index as an option":  {Language: api.LanguagePython, Index: api.Index{IndexURL: "--pre"}},
		"index with a space":  {Language: api.LanguagePython, Index: api.Index{ExtraIndexURLs: []string{"https://x/ https://y/"}}},
		"registry":            {Language: api.LanguageNode, Index: api.Index{NPMRegistry: "file:///x"}},
		"links relative":      {Language: api.LanguagePython, Index: api.Index{FindLinks: []string{"wheels"}}},
		"links climb":         {Language: api.LanguagePython, Index: api.Index{FindLinks: []string{"/a/../b"}}},
		"links everything":    {Language: api.LanguagePython, Index: api.Index{FindLinks: []string{"/"}}},
		"links with password": {Language: api.LanguagePython, Index: api.Index{FindLinks: []string{"https://u:p@x/"}}},
		"too many links":      {Language: api.LanguagePython, Index: api.Index{FindLinks: make([]string, 40)}},
	} {
		_, err := s.Key()
		require.Error(t, err, name)
		assert.Equal(t, slots.KindBadRequest, slots.AsError(err).Kind, name)
	}
}

func TestEventsOfAnEnvironmentAreOneObjectALine(t *testing.T) {
	text, err := json.Marshal(api.EnvironmentEvent{Event: api.EventProgress, Text: "Collecting a"})
	require.NoError(t, err)
	assert.JSONEq(t, `{"event":"progress","text":"Collecting a"}`, string(text))
	last := api.EnvironmentEvent{Event: api.EventResult, EnvironmentResult: &api.EnvironmentResult{
		BuildMS: 1, Failure: &api.EnvironmentFailure{Kind: api.KindInstall, Reason: api.InstallConflict},
	}}
	text, err = json.Marshal(last)
	require.NoError(t, err)
	var back api.EnvironmentEvent
	require.NoError(t, json.Unmarshal(text, &back))
	assert.Equal(t, last, back)
	assert.Equal(t, "/v1/environments/ab%2Fc", api.EnvironmentRoute("ab/c"))
}

func FuzzEnvironmentRequirements(f *testing.F) {
	f.Add("Foo_bar[x]", ">=1,<2", true)
	f.Add("@a/b", "^1.0", false)
	f.Fuzz(func(t *testing.T, name, version string, py bool) {
		s := node(api.Requirement{Name: name, Version: version})
		if py {
			s.Language = api.LanguagePython
		}
		n, err := s.Normalized()
		if err != nil {
			return
		}
		argument := n.Requirements[0].Argument(n.Language)
		assert.False(t, strings.HasPrefix(argument, "-") || strings.HasPrefix(argument, ".") || strings.HasPrefix(argument, "/"), "%q", argument)
		assert.NotContains(t, argument, ":")
		assert.False(t, strings.ContainsAny(argument, ";$`\\\"'\n\x00#%&()"), "%q", argument)
		again, err := n.Normalized()
		require.NoError(t, err)
		assert.Equal(t, n, again, "normal is normal")
	})
}
