package slots

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"time"
)

// ParseSize reads a number of bytes, or of anything, as a setting has it: 65536,
// 64MiB, 2G.
func ParseSize(s string) (int64, error) {
	digits := strings.TrimRight(s, "bBkKmMgGtTiI")
	unit, known := unitOf(strings.ToUpper(s[len(digits):]))
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || !known || n < 0 || n > math.MaxInt64/unit {
		return 0, errors.New("want a size, as 65536 or 64MiB")
	}
	return n * unit, nil
}

// unitOf is how much a unit is; K is KiB, as KB is not.
func unitOf(name string) (n int64, known bool) {
	switch name {
	case "", "B":
		return 1, true
	case "K", "KIB":
		return 1 << 10, true
	case "M", "MIB":
		return 1 << 20, true
	case "G", "GIB":
		return 1 << 30, true
	case "T", "TIB":
		return 1 << 40, true
	case "KB":
		return 1e3, true
	case "MB":
		return 1e6, true
	case "GB":
		return 1e9, true
	case "TB":
		return 1e12, true
	}
	return 0, false
}

// ParseDuration reads a time above 0 as a setting has it: 90s, 5m, and, as the
// reference does, plain seconds.
func ParseDuration(s string) (time.Duration, error) {
	if seconds, err := strconv.ParseFloat(s, 64); err == nil {
		s = strconv.FormatFloat(seconds, 'f', -1, 64) + "s"
	}
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 {
		return 0, errors.New("want a duration above 0, as 90s or 5m")
	}
	return d, nil
}
