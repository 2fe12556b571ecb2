package bench

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestVerdictsSayWhatWasReached(t *testing.T) {
	most := bar{must: []float64{10}, aim: []float64{5}}
	least := bar{atLeast: true, must: []float64{0.8}, aim: []float64{1.1}}
	two := bar{must: []float64{25, 4}, aim: []float64{15, 1.5}}
	none := bar{must: []float64{0, 0, 0}}
	for _, c := range []struct {
		bar
		values []float64
		want   string
	}{
		{most, []float64{5}, "aim met"},
		{most, []float64{5.01}, "must met"},
		{most, []float64{10}, "must met"},
		{most, []float64{10.01}, "MISSED"},
		{least, []float64{1.2}, "aim met"},
		{least, []float64{0.8}, "must met"},
		{least, []float64{0.79}, "MISSED"},
		{two, []float64{14, 1.4}, "aim met"},
		{two, []float64{14, 3}, "must met"},
		{two, []float64{14, 5}, "MISSED"},
		{two, []float64{26, 1}, "MISSED"},
		{none, []float64{0, 0, 0}, "met"},
		{none, []float64{0, 0, 1}, "MISSED"},
		{most, nil, "MISSED"},
	} {
		assert.Equal(t, c.want, row{bar: c.bar, finding: finding{values: c.values}}.verdict(), "%v", c.values)
	}
	assert.Equal(t, "not measured", row{bar: most, err: errors.New("x")}.verdict())
}

func TestNumbersShowOnWhichSideOfTheBarTheyAre(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 3: "3", 0.7991: "0.799", 1.504: "1.50", 14.96: "15.0", 99.94: "99.9", 299.6: "300", 1035.57: "1036",
	} {
		assert.Equal(t, want, threeDigits(v))
	}
}

func TestTheTableIsAlignedMarkdownAndTellsWhatIsMissing(t *testing.T) {
	var out strings.Builder
	require.NoError(t, writeTable(&out, []row{
		{
			bar:     bar{what: "single × one", unit: " × floor", must: []float64{1.5}, aim: []float64{1.15}},
			finding: finding{values: []float64{1.2}, detail: "2.00 ms", floor: "1.67 ms"},
		},
		{bar: bar{what: "idle", unit: " MiB", must: []float64{25, 4}, aim: []float64{15, 1.5}}, err: errors.New("permission denied\nfor us")},
		{bar: bar{what: "rate", atLeast: true, must: []float64{0.8}}, finding: finding{values: []float64{0.5}}},
	}))
	assert.Equal(t, `
| what         | must          | aim            | measured               | floor   | verdict      |
|--------------|---------------|----------------|------------------------|---------|--------------|
| single × one | ≤ 1.5 × floor | ≤ 1.15 × floor | 1.20 × floor (2.00 ms) | 1.67 ms | must met     |
| idle         | ≤ 25 / 4 MiB  | ≤ 15 / 1.5 MiB | -                      |         | not measured |
| rate         | ≥ 0.8         |                | 0.500                  |         | MISSED       |

not measured: idle: permission denied; for us
`[1:], out.String())
}

func TestEveryRowHasABarForEachOfItsValues(t *testing.T) {
	names := map[string]bool{}
	for _, m := range slices.Concat(measurements(), functionMeasurements(), toolMeasurements(), poolMeasurements()) {
		assert.NotEmpty(t, m.must, m.what)
		if m.aim != nil {
			assert.Len(t, m.aim, len(m.must), m.what)
			assert.True(t, m.meets(m.aim, m.must), "%s: who reaches the aim reaches the must", m.what)
		}
		assert.False(t, names[m.what], "%s is there twice", m.what)
		names[m.what] = true
	}
	assert.Len(t, names, 11+3+4+6)
}

// writes keeps what comes of each write.
type writes []string

func (w *writes) Write(p []byte) (int, error) {
	*w = append(*w, string(p))
	return len(p), nil
}

func TestAReportIsWrittenInOnePiece(t *testing.T) {
	var got writes
	require.NoError(t, Report{Workers: 8, PerSecond: 100}.Write(&got))
	require.Len(t, got, 1, "whose log this is may have other writers")
	assert.Regexp(t, `(?s)per second.*\n +8 at once +100 .*\n0\.00 × the rate`, got[0])
}
