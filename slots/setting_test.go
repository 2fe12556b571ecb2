package slots

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestParseSizeTakesUnits(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "65536": 65536, "7B": 7, "1k": 1 << 10, "2KiB": 2 << 10, "2kb": 2000, "512MiB": 512 << 20, "512M": 512 << 20, "3MB": 3e6,
		"2G": 2 << 30, "2GB": 2e9, "1TiB": 1 << 40, "8388607TiB": 8388607 << 40, "1TB": 1e12,
	} {
		n, err := ParseSize(text)
		require.NoError(t, err, text)
		assert.Equal(t, want, n, text)
	}
	for _, text := range []string{"", "MiB", "-1", "1.5G", "1 G", "1MM", "1iB", "many", "8388608TiB", "9223372036854775808"} {
		_, err := ParseSize(text)
		require.ErrorContains(t, err, "want a size", text)
	}
}

func TestParseDurationTakesSeconds(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"1800": 30 * time.Minute, "0.5": 500 * time.Millisecond, "90s": 90 * time.Second, "1h30m": 90 * time.Minute, "1e3": 1000 * time.Second,
	} {
		d, err := ParseDuration(text)
		require.NoError(t, err, text)
		assert.Equal(t, want, d, text)
	}
	for _, text := range []string{"", "0", "0s", "-5", "-1m", "soon", "NaN", "Inf", "1e300"} {
		_, err := ParseDuration(text)
		require.ErrorContains(t, err, "want a duration", text)
	}
}
