package httpapi

import (
	"net/http"
	"strconv"
	"strings"

	"berth/sandboxd/httpkit"
	"berth/slots"
)

// span is a part of a file, in bytes.
type span struct{ start, length int64 }

// requested is the part of a file of the size that the request asks for, and
// the status to answer it with. A Range that is wrongly written, asks for
// several parts or belongs to another version of the file is no Range, as
// HTTP has it; one outside the file is an error with 416.
func requested(r *http.Request, size int64, etag string) (span, int, error) {
	whole := span{0, size}
	text, ok := strings.CutPrefix(r.Header.Get("Range"), "bytes=")
	if !ok || strings.Contains(text, ",") {
		return whole, http.StatusOK, nil
	}
	if version := r.Header.Get("If-Range"); version != "" && version != etag {
		return whole, http.StatusOK, nil
	}
	part, ok := parseRange(strings.TrimSpace(text), size)
	if !ok {
		return whole, http.StatusOK, nil
	}
	if part.length <= 0 {
		return whole, 0, &httpkit.StatusError{
			Status: http.StatusRequestedRangeNotSatisfiable,
			Err:    slots.Errorf(slots.KindBadRequest, "range is outside of the file of %d bytes", size),
		}
	}
	return part, http.StatusPartialContent, nil
}

// parseRange reads "A-B", "A-" or "-N". The length is not above 0 when the
// range is outside of the file.
func parseRange(text string, size int64) (span, bool) {
	first, last, ok := strings.Cut(text, "-")
	if !ok || !digits(first) || !digits(last) || first == "" && last == "" {
		return span{}, false
	}
	if first == "" {
		n := min(number(last), size)
		return span{size - n, n}, true
	}
	start := number(first)
	if last == "" {
		return span{start, size - start}, true
	}
	end := number(last)
	if end < start {
		return span{}, false
	}
	return span{start, min(end, size-1) - start + 1}, true
}

func digits(text string) bool {
	return strings.Trim(text, "0123456789") == ""
}

// number reads digits; what is too large for a file is the largest number
// that adding 1 does not turn around.
func number(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 1<<62 - 1
	}
	return min(n, 1<<62-1)
}
