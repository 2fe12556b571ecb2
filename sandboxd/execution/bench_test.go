package execution

import (
	"encoding/json"
	"testing"

	"berth/sandboxd/api"
)

// BenchmarkExecution is what the registry adds to one execution: fingerprint,
// Begin, Start and Finish, with both records written.
func BenchmarkExecution(b *testing.B) {
	call := api.Call{
		SlotID: "slot_0", Tool: "bash", Timeout: api.Seconds(30),
		Args: json.RawMessage(`{"command":"go test ./... 2>&1 | tail -20","env":{"A":"1"}}`),
	}
	for name, dir := range map[string]string{"memory": "", "journal": b.TempDir()} {
		b.Run(name, func(b *testing.B) {
			r := open(b, Config{Journal: dir})
			b.ReportAllocs()
			for b.Loop() {
				e, _, err := r.Begin(b.Context(), "", Fingerprint(call))
				if err == nil {
					err = e.Start()
				}
				if err != nil {
					b.Fatal(err)
				}
				e.Finish(ran("ok  \tberth/slots\t0.031s\n"))
			}
		})
	}
}

func BenchmarkFingerprint(b *testing.B) {
	call := callWith(`{"command":"go test ./... 2>&1 | tail -20","env":{"A":"1"}}`)
	b.ReportAllocs()
	for b.Loop() {
		_ = Fingerprint(call)
	}
}

func BenchmarkReplay(b *testing.B) {
	r := open(b, Config{})
	runOne(b, r, "x", "ok")
	b.ReportAllocs()
	for b.Loop() {
		e, _, err := r.Begin(b.Context(), "x", printA)
		if err != nil {
			b.Fatal(err)
		}
		_ = e.Result()
	}
}
