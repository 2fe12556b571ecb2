package httpkit

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"berth/slots"
)

// PathValue decodes what the router found for a path parameter. It matches the
// path as it was sent when that differs from its usual encoding, so the value
// is decoded here in that case, and only once.
func PathValue(r *http.Request, found string) (string, error) {
	if r.URL.RawPath == "" {
		return found, nil
	}
	value, err := url.PathUnescape(found)
	if err != nil {
		return "", slots.Errorf(slots.KindBadRequest, "path is wrongly encoded")
	}
	return value, nil
}

// ResumeAt reads where a stream of output goes on, in bytes: from the query,
// else from the id of the last event that the client has had.
func ResumeAt(r *http.Request) (stdout, stderr int64, err error) {
	if last := r.Header.Get("Last-Event-ID"); last != "" {
		first, second, _ := strings.Cut(last, ".")
		var ok1, ok2 bool
		stdout, ok1 = offset(first)
		stderr, ok2 = offset(second)
		if !ok1 || !ok2 {
			return 0, 0, slots.Errorf(slots.KindBadRequest, "Last-Event-ID must be two offsets with a dot between them")
		}
	}
	if stdout, err = QueryOffset(r, "stdout_offset", stdout); err != nil {
		return 0, 0, err
	}
	stderr, err = QueryOffset(r, "stderr_offset", stderr)
	return stdout, stderr, err
}

// QueryOffset reads a number of bytes from the query.
func QueryOffset(r *http.Request, name string, byDefault int64) (int64, error) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return byDefault, nil
	}
	n, ok := offset(text)
	if !ok {
		return 0, slots.Errorf(slots.KindBadRequest, "%s must be an integer not below 0", name)
	}
	return n, nil
}

func offset(text string) (int64, bool) {
	n, err := strconv.ParseInt(text, 10, 64)
	return n, err == nil && n >= 0
}
