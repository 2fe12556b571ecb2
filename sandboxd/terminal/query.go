package terminal

import (
	"net/url"
	"strconv"
	"strings"

	"berth/sandboxd/api"
	"berth/slots"
)

// maxTerm is the longest kind of terminal.
const maxTerm = 64

// fromQuery reads what a terminal's query says.
func fromQuery(q url.Values, want *api.TerminalRequest) error {
	for name, values := range q {
		value := values[0]
		if len(values) > 1 {
			return slots.Errorf(slots.KindBadRequest, "%.80s is there twice", name)
		}
		var err error
		switch name {
		case "cols":
			want.Columns, err = strconv.Atoi(value)
		case "rows":
			want.Rows, err = strconv.Atoi(value)
		case "command":
			want.Command = value
		case "term":
			want.Term = value
		case "cwd":
			want.Cwd = value
		default:
			return slots.Errorf(slots.KindBadRequest, "unknown parameter %.80s", name)
		}
		if err != nil {
			return slots.Errorf(slots.KindBadRequest, "%s must be an integer", name)
		}
	}
	strange := func(r rune) bool { return r <= ' ' || r > '~' }
	if len(want.Term) > maxTerm || strings.ContainsFunc(want.Term, strange) {
		return slots.Errorf(slots.KindBadRequest, "term must be the name of a kind of terminal")
	}
	if strings.ContainsRune(want.Command+want.Cwd, 0) {
		return slots.Errorf(slots.KindBadRequest, "command and cwd must not hold NUL")
	}
	return want.Check()
}

// Query is the request as it travels.
func Query(want api.TerminalRequest) url.Values {
	q := url.Values{}
	for name, value := range map[string]string{"command": want.Command, "term": want.Term, "cwd": want.Cwd} {
		if value != "" {
			q.Set(name, value)
		}
	}
	for name, value := range map[string]int{"cols": want.Columns, "rows": want.Rows} {
		if value != 0 {
			q.Set(name, strconv.Itoa(value))
		}
	}
	return q
}
