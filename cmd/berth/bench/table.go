package bench

import (
	"fmt"
	"io"
	"math"
	"strings"
	"unicode/utf8"
)

// bar is what a row has to reach: one number per value of the row.
type bar struct {
	what    string
	unit    string
	atLeast bool // the values must be at least the bar's, else at most
	must    []float64
	aim     []float64 // nil: there is none
}

// finding is what was measured.
type finding struct {
	values []float64 // as many as the bar has
	detail string    // beside the values
	floor  string
}

// row is a line of the table.
type row struct {
	bar
	finding
	err error // why there is no finding
}

// meets reports whether every value reaches its number of the bar.
func (b bar) meets(values, numbers []float64) bool {
	for i, v := range values {
		if b.atLeast && v < numbers[i] || !b.atLeast && v > numbers[i] {
			return false
		}
	}
	return len(values) == len(numbers)
}

// verdict says in a word or two how the values stand to the bar.
func (r row) verdict() string {
	switch {
	case r.err != nil:
		return "not measured"
	case !r.meets(r.values, r.must):
		return "MISSED"
	case r.aim == nil:
		return "met"
	case r.meets(r.values, r.aim):
		return "aim met"
	}
	return "must met"
}

// limit writes numbers of the bar.
func (b bar) limit(numbers []float64) string {
	if numbers == nil {
		return ""
	}
	sign := "≤ "
	if b.atLeast {
		sign = "≥ "
	}
	return sign + join(numbers, func(v float64) string { return fmt.Sprintf("%g", v) }) + b.unit
}

func (r row) measured() string {
	if r.err != nil {
		return "-"
	}
	text := join(r.values, threeDigits) + r.unit
	if r.detail != "" {
		text += " (" + r.detail + ")"
	}
	return text
}

// threeDigits writes about three digits, so that a value just beside its bar
// shows on which side it is. Whole numbers stay whole.
func threeDigits(v float64) string {
	switch {
	case v == math.Trunc(v), v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	case v >= 1:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.3f", v)
}

func join(numbers []float64, text func(float64) string) string {
	parts := make([]string, len(numbers))
	for i, v := range numbers {
		parts[i] = text(v)
	}
	return strings.Join(parts, " / ")
}

// writeTable writes the rows as a Markdown table with aligned columns, and
// below it why rows could not be measured.
func writeTable(out io.Writer, rows []row) error {
	lines := [][]string{{"what", "must", "aim", "measured", "floor", "verdict"}}
	for _, r := range rows {
		lines = append(lines, []string{r.what, r.limit(r.must), r.limit(r.aim), r.measured(), r.floor, r.verdict()})
	}
	widths := make([]int, len(lines[0]))
	for _, line := range lines {
		for i, cell := range line {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	var text strings.Builder
	for n, line := range lines {
		for i, cell := range line {
			fmt.Fprintf(&text, "| %s%s ", cell, strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)))
		}
		text.WriteString("|\n")
		if n == 0 {
			for _, width := range widths {
				text.WriteString("|" + strings.Repeat("-", width+2))
			}
			text.WriteString("|\n")
		}
	}
	for _, r := range rows {
		if r.err != nil {
			fmt.Fprintf(&text, "\nnot measured: %s: %s\n", r.what, strings.ReplaceAll(r.err.Error(), "\n", "; "))
		}
	}
	_, err := io.WriteString(out, text.String())
	return err
}
