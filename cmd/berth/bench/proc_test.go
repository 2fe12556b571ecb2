package bench

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAProcessIsReadWhateverItsName(t *testing.T) {
	for text, want := range map[string]process{
		"12 (bash) S 3 12 12 0 -1 4194560":        {pid: 12, parent: 3, state: 'S'},
		"7 (a) R 1 (b) Z 5 1 1":                   {pid: 7, parent: 5, state: 'Z'},
		"8 (\n) S 9 \n) D 2 0":                    {pid: 8, parent: 2, state: 'D'},
		"1 () S 0":                                {pid: 1, parent: 0, state: 'S'},
		"4194304 (sandboxd serve-) S 4194303 1 1": {pid: 4194304, parent: 4194303, state: 'S'},
	} {
		got, err := parseStat(text)
		require.NoError(t, err, "%q", text)
		assert.Equal(t, want, got)
	}
	for _, text := range []string{"", "12", "12 bash S 3", "(x) S 3", "a (x) S 3", "1 (x)", "1 (x) S", "1 (x) SS 3", "1 (x) S y", ") 1 ("} {
		_, err := parseStat(text)
		assert.Error(t, err, "%q", text)
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add("12 (bash) S 3 12 12 0 -1 4194560")
	f.Add("7 (a) R 1 (b) Z 5 1 1")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := parseStat(text)
		if err == nil {
			require.NotZero(t, p.state)
		}
	})
}

func TestAFamilyIsEverybodyBelow(t *testing.T) {
	table := processes{
		{1, 0, 'S'}, {2, 1, 'S'}, {3, 2, 'S'}, {4, 2, 'Z'}, {5, 3, 'Z'}, {6, 1, 'Z'},
	}
	assert.Equal(t, []int{3, 4}, table.children(2))
	assert.ElementsMatch(t, []int{3, 4, 5}, table.descendants(2))
	assert.Empty(t, table.descendants(6))
	assert.Equal(t, 2, table.zombies(table.descendants(2)), "6 belongs to another family")
}

func TestOurOwnFamilyIsFoundAndAZombieInIt(t *testing.T) {
	child := exec.Command("true")
	require.NoError(t, child.Start())
	require.Eventually(t, func() bool {
		table, err := readProcesses()
		require.NoError(t, err)
		family := table.descendants(os.Getpid())
		return table.zombies(family) == 1 && assert.Contains(t, family, child.Process.Pid)
	}, 30*time.Second, time.Millisecond)
	require.NoError(t, child.Wait())
	table, err := readProcesses()
	require.NoError(t, err)
	assert.NotContains(t, table.descendants(os.Getpid()), child.Process.Pid)
}

func TestOpenFilesAreCounted(t *testing.T) {
	before, err := countDescriptors(os.Getpid())
	require.NoError(t, err)
	f, err := os.Open(os.DevNull)
	require.NoError(t, err)
	after, err := countDescriptors(os.Getpid())
	require.NoError(t, err)
	require.NoError(t, f.Close())
	assert.Equal(t, before+1, after)
	_, err = countDescriptors(-1)
	assert.ErrorIs(t, err, fs.ErrNotExist)
}

func TestMemoryIsReadInBytes(t *testing.T) {
	m, err := readMemory(os.Getpid())
	require.NoError(t, err)
	assert.Greater(t, m.resident, int64(1<<20))
	assert.GreaterOrEqual(t, m.peak, m.resident)
	pss, err := readPSS(os.Getpid())
	require.NoError(t, err)
	assert.Positive(t, pss)
	_, err = readMemory(-1)
	require.ErrorIs(t, err, fs.ErrNotExist)
	_, err = readPSS(-1)
	require.ErrorIs(t, err, fs.ErrNotExist)

	n, err := kilobytes([]byte("Rss: 5 kB\nPss:    12 kB\nPss_Dirty: 9 kB\n"), "Pss:")
	require.NoError(t, err)
	assert.EqualValues(t, 12<<10, n)
	for _, text := range []string{"", "Pss: 12 MB", "Pss: x kB", "Pss: 99999999999999999999 kB"} {
		_, err := kilobytes([]byte(text), "Pss:")
		require.Error(t, err, text)
	}
	assert.InDelta(t, 1.5, mebibytes(3<<19), 0)
}

func TestAMissingPermissionSaysWhatItTakes(t *testing.T) {
	err := explained(fs.ErrPermission)
	require.ErrorIs(t, err, fs.ErrPermission)
	require.ErrorContains(t, err, "root")
	assert.Equal(t, fs.ErrNotExist, explained(fs.ErrNotExist))
}

func TestWhatAProcessHasLessIsNoExcuseForAnother(t *testing.T) {
	before := rest{descriptors: map[int]int{1: 10, 2: 5}}
	assert.Zero(t, leaked(before, rest{descriptors: map[int]int{1: 10, 2: 4}}))
	assert.Equal(t, 2, leaked(before, rest{descriptors: map[int]int{1: 12, 2: 3}}))
	assert.Equal(t, 7, leaked(before, rest{descriptors: map[int]int{1: 10, 3: 7}}))
}

func TestABinaryThatIsNoneIsAnError(t *testing.T) {
	name := filepath.Join(t.TempDir(), "script")
	require.NoError(t, os.WriteFile(name, []byte("#!/bin/sh\n"), 0o600))
	require.ErrorContains(t, staticAndStripped(name), "open binary")
	me, err := os.Executable()
	require.NoError(t, err)
	assert.ErrorContains(t, staticAndStripped(me), "the binary is not", "a test binary has its symbols")
}

func TestAStampIsReadToTheMicrosecond(t *testing.T) {
	at, err := parseStamp("1700000000.000042\n")
	require.NoError(t, err)
	assert.Equal(t, time.Unix(1_700_000_000, 42_000), at)
	for _, text := range []string{"", "\n", "1700000000", "1700000000.42", "x.000042", "1.00004x", "1.-00042", "1.0000423"} {
		_, err := parseStamp(text)
		assert.Error(t, err, text)
	}
}

func FuzzParseStamp(f *testing.F) {
	f.Add("1700000000.000042\n")
	f.Fuzz(func(t *testing.T, text string) {
		at, err := parseStamp(text)
		if err == nil {
			require.Less(t, at.Nanosecond(), 1_000_000_000)
		}
	})
}
