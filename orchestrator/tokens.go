package orchestrator

import (
	"fmt"
	"strings"

	"berth/orchestrator/config"
	"berth/orchestrator/httpapi"
	"berth/sandboxd/api"
)

// readTokens reads all tokens: no other field of what it returns is set. That
// of metrics must open nothing else, so it is none of the others.
func (c Config) readTokens() (opens httpapi.Config, err error) {
	if opens.Token, err = api.ReadToken(c.TokenFile); err != nil {
		return opens, err
	}
	if opens.OperatorToken, err = api.ReadToken(c.OperatorTokenFile); err != nil {
		return opens, err
	}
	if opens.Bound, err = readBoundTokens(c.BoundTokenFile, opens.Token, opens.OperatorToken); err != nil {
		return opens, err
	}
	others := []string{opens.Token, opens.OperatorToken}
	for _, b := range opens.Bound {
		others = append(others, b.Token)
	}
	opens.MetricsToken, err = api.ReadMetricsToken(c.MetricsTokenFile, others...)
	return opens, err
}

// readBoundTokens reads the tokens that are bound to organizations: on each
// line the names with commas between them, white space, and the token; lines
// that are empty or begin with # mean nothing. Nobody else may be able to read
// the file, and no token may be there twice or be one of the others. Without a
// path there are none. Errors name lines, never what they hold.
func readBoundTokens(path string, others ...string) ([]httpapi.BoundToken, error) {
	text, err := api.ReadToken(path)
	if err != nil {
		return nil, fmt.Errorf("tokens of organizations: %w", err)
	}
	seen := map[string]bool{}
	for _, token := range others {
		seen[token] = true
	}
	var all []httpapi.BoundToken
	for n, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		at := strings.IndexAny(line, " \t")
		if at < 0 {
			return nil, fmt.Errorf("tokens of organizations: line %d of %s: want organizations, a space and a token", n+1, path)
		}
		b := httpapi.BoundToken{Token: strings.TrimSpace(line[at:]), Organizations: strings.Split(line[:at], ",")}
		for _, id := range b.Organizations {
			// It may be a token that stands in the wrong place.
			if config.CheckOrganization(id) != nil {
				return nil, fmt.Errorf("tokens of organizations: line %d of %s begins with what names no organization: want a letter or digit, then at most 127 of those and of . _ -", n+1, path)
			}
		}
		if seen[b.Token] {
			return nil, fmt.Errorf("tokens of organizations: line %d of %s: this token is there already", n+1, path)
		}
		seen[b.Token] = true
		all = append(all, b)
	}
	return all, nil
}
