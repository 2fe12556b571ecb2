package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"sync"
	"time"

	"berth/sandboxd/api"
	"berth/sandboxd/client"
)

func p50(l []time.Duration) time.Duration { slices.Sort(l); return l[len(l)/2] }

func main() {
	c, err := client.New(client.Config{URL: os.Args[1]})
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	args, _ := json.Marshal(map[string]any{"command": "true"})
	call := func(slot int, tool string, a json.RawMessage) api.Result {
		r, err := c.Execute(ctx, api.Call{SlotID: fmt.Sprintf("slot_%d", slot), Tool: tool, Args: a})
		if err != nil {
			panic(err)
		}
		return r
	}
	wr, _ := json.Marshal(map[string]any{"path": "a.txt", "content": string(make([]byte, 1024))})
	rd, _ := json.Marshal(map[string]any{"path": "a.txt"})
	var a, f, w, r, sp, du []time.Duration
	for range 400 {
		t := time.Now()
		exec.Command("bash", "-c", "true").Run()
		f = append(f, time.Since(t))
		t = time.Now()
		x := call(0, "bash", args)
		a = append(a, time.Since(t))
		sp = append(sp, time.Duration(x.Metadata.SpawnMS*1e6))
		du = append(du, time.Duration(x.Metadata.DurationMS*1e6))
		t = time.Now()
		call(0, "write_file", wr)
		w = append(w, time.Since(t))
		t = time.Now()
		call(0, "read_file", rd)
		r = append(r, time.Since(t))
	}
	fl := p50(f)
	fmt.Printf("floor %v exec %v %.2f (spawn %v run %v) write %v %.2f read %v %.2f\n", fl, p50(a), float64(p50(a))/float64(fl), p50(sp), p50(du), p50(w), float64(p50(w))/float64(fl), p50(r), float64(p50(r))/float64(fl))
	rate := func(do func(i int)) float64 {
		t := time.Now()
		n := 0
		var mu sync.Mutex
		var wg sync.WaitGroup
		for i := range 32 {
			wg.Go(func() {
				for time.Since(t) < 3*time.Second {
					do(i)
					mu.Lock()
					n++
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		return float64(n) / time.Since(t).Seconds()
	}
	fr := rate(func(int) { exec.Command("bash", "-c", "true").Run() })
	ar := rate(func(i int) { call(i%32, "bash", args) })
	fmt.Printf("32 at once: floor %.0f/s berth %.0f/s %.2f\n", fr, ar, ar/fr)
	var b []time.Duration
	for range 20 {
		calls := make([]api.Call, 64)
		for i := range calls {
			calls[i] = api.Call{SlotID: fmt.Sprintf("slot_%d", i%16), Tool: "bash", Args: args}
		}
		t := time.Now()
		if _, err := c.Batch(ctx, calls); err != nil {
			panic(err)
		}
		b = append(b, time.Since(t)/64)
	}
	fmt.Printf("batch per exec %v %.2f\n", p50(b), float64(p50(b))/float64(fl))
}
