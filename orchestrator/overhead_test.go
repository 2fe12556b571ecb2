package orchestrator_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/sandboxd/api"
	"berth/slots/sandbox/sandboxtest"
)

// direct posts to the container, as any client could.
func (i *instance) direct(container string) func(path string, body any) reply {
	i.t.Helper()
	dir := filepath.Join(i.dir, "containers", container)
	token, err := os.ReadFile(filepath.Join(dir, "token"))
	require.NoError(i.t, err)
	log, err := os.ReadFile(filepath.Join(dir, "log"))
	require.NoError(i.t, err)
	_, rest, found := strings.Cut(string(log), `"address":"`)
	require.True(i.t, found)
	address, _, _ := strings.Cut(rest, `"`)
	to := *i
	to.url, to.contract = "http://"+address, nil
	return func(path string, body any) reply {
		if body == nil {
			return to.get(path, "Authorization: Bearer "+strings.TrimSpace(string(token)))
		}
		return to.post(path, body, "Authorization: Bearer "+strings.TrimSpace(string(token)))
	}
}

func quantile(all []time.Duration, percent int) time.Duration {
	slices.Sort(all)
	return all[(len(all)-1)*percent/100]
}

func TestACallCostsLittleMoreThanADirectOne(t *testing.T) {
	i := start(t, sandboxtest.DataDir(t), "--containers", "1", "--isolation-require", "landlock")
	i.contract = nil // it has its time
	i.run("a", "true")
	entries, err := os.ReadDir(filepath.Join(i.dir, "containers"))
	require.NoError(t, err)
	require.Len(t, entries, 1)
	direct := i.direct(entries[0].Name())
	var held api.Slots
	require.NoError(t, json.Unmarshal(direct("/slots", nil).body, &held))
	at := slices.IndexFunc(held.Slots, func(s api.Slot) bool { return s.Lease != nil })
	require.GreaterOrEqual(t, at, 0)
	// Encoded once, so that both ways cost the client the same.
	encode := func(v any) string {
		text, err := json.Marshal(v)
		require.NoError(t, err)
		return string(text)
	}
	args := object{"command": "true"}
	plain := encode(object{"slot_id": held.Slots[at].SlotID, "tool": "bash", "args": args, "token": held.Slots[at].Lease.Token})
	ours := encode(object{"trajectory_id": "a", "tool": object{"name": "bash", "arguments": args}})
	var one, other []time.Duration
	for n := range 600 {
		took := func(do func() reply) time.Duration {
			began := time.Now()
			r := do()
			d := time.Since(began)
			require.Equal(t, http.StatusOK, r.status)
			require.True(t, bytes.HasPrefix(r.body, []byte(`{"success":true`)), "%s", r.body)
			return d
		}
		a := took(func() reply { return direct("/execute", plain) })
		b := took(func() reply { return i.post("/execute", ours) })
		if n >= 100 { // warm
			one, other = append(one, a), append(other, b)
		}
	}
	more := quantile(other, 50) - quantile(one, 50)
	for _, percent := range []int{10, 50, 99} {
		a, b := quantile(one, percent), quantile(other, percent)
		t.Logf("a call, p%d: direct %v, through the pool %v: %v more", percent, a, b, b-a)
	}
	assert.Less(t, more, 20*time.Millisecond)
}

func TestAFreeSlotIsAcquiredQuickly(t *testing.T) {
	i := start(t, sandboxtest.DataDir(t), "--containers", "1", "--slots", "8")
	var first, later []time.Duration
	for n := range 60 {
		me := fmt.Sprint("t", n)
		for range 2 {
			r := i.post("/execute", call(me, "", "true"))
			timing := r.metadata()["timing_ms"].(object)
			took := time.Duration(timing["acquire"].(float64) * float64(time.Millisecond))
			if took > 0 {
				first = append(first, took)
			} else {
				later = append(later, took)
			}
		}
		require.Equal(t, 200, i.post("/release", object{"trajectory_id": me}).status)
	}
	require.Len(t, first, 60)
	require.Len(t, later, 60)
	t.Logf("acquire with the first call: p50 %v, p99 %v", quantile(first, 50), quantile(first, 99))
}
