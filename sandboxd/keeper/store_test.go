package keeper

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/slots"
)

func TestARecordComesBackAsItWasSaved(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "a", "b")
	store, err := OpenFileStore(dir)
	require.NoError(t, err)
	record, err := store.Load("slot_0")
	require.NoError(t, err)
	assert.Equal(t, Record{}, record)

	record = Record{Generation: 3, ResetDue: true}
	record.Tenancy.SlotID = "slot_0"
	_, err = record.Tenancy.Acquire(time.Now().Round(0).UTC(), "a", time.Minute, map[string]string{"k": "v"})
	require.NoError(t, err)
	require.NoError(t, store.Save("slot_0", record))
	require.NoError(t, store.Save("slot_1", Record{Generation: 1}))

	store, err = OpenFileStore(dir)
	require.NoError(t, err)
	back, err := store.Load("slot_0")
	require.NoError(t, err)
	assert.Equal(t, record, back)
	names, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Len(t, names, 2, "nothing but the records stays")
	st, err := os.Stat(dir)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o700), st.Mode().Perm(), "slots must not read each other's tokens")
}

func TestABrokenRecordIsAnErrorAndNotANewSlot(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	store, err := OpenFileStore(dir)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "slot_0.json"), []byte(`{"generation":`), 0o600))
	_, err = store.Load("slot_0")
	require.ErrorContains(t, err, "slot_0.json")
}

func TestASaveThatFailsLeavesTheOldRecord(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	store, err := OpenFileStore(dir)
	require.NoError(t, err)
	require.NoError(t, store.Save("slot_0", Record{Generation: 1}))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "slot_0.json.next"), 0o700))
	require.Error(t, store.Save("slot_0", Record{Generation: 2}))
	record, err := store.Load("slot_0")
	require.NoError(t, err)
	assert.Equal(t, Record{Generation: 1, Tenancy: slots.Tenancy{}}, record)
}
