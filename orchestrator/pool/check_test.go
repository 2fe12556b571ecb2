package pool_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/backend"
	"berth/orchestrator/pool"
	"berth/sandboxd/client"
	"berth/slots"
)

// What the pool is made for.
var (
	_ pool.Remote = (*client.Client)(nil)
	_ pool.Fleet  = backend.Backend(nil)
)

func TestTemplatesThatMakeNoPoolAreRefused(t *testing.T) {
	for want, change := range map[string]func(*pool.Template){
		"name":               func(t *pool.Template) { t.Name = "" },
		"name: want 1 to 40": func(t *pool.Template) { t.Name = strings.Repeat("x", 41) },
		"id":                 func(t *pool.Template) { t.Name = "a b" },
		"slots":              func(t *pool.Template) { t.Slots = 0 },
		"min -1":             func(t *pool.Template) { t.MinContainers = -1 },
		"min 3 is above":     func(t *pool.Template) { t.MinContainers, t.MaxContainers = 3, 2 },
		"margin":             func(t *pool.Template) { t.FreeMargin = -1 },
		"ttl":                func(t *pool.Template) { t.TTL = -1 },
		"ttl: want 1s to":    func(t *pool.Template) { t.TTL = time.Millisecond },
		"to 24h":             func(t *pool.Template) { t.TTL = 48 * time.Hour },
		"isolation":          func(t *pool.Template) { t.Isolation = "strong" },
		"env":                func(t *pool.Template) { t.Env = map[string]string{"1X": "y"} },
		"timeout":            func(t *pool.Template) { t.MaxTimeout = -1 },
		"limits":             func(t *pool.Template) { t.Limits.Pids = -1 },
	} {
		tpl := fixed()
		require.NoError(t, tpl.Check())
		change(&tpl)
		err := tpl.Check()
		assert.Equal(t, slots.KindBadRequest, kind(err), want)
		require.ErrorContains(t, err, want)
		_, err = pool.New(newFleet(), nil, pool.Config{Templates: []pool.Template{tpl}})
		require.Error(t, err)
	}
	_, err := pool.New(newFleet(), nil, pool.Config{})
	assert.Equal(t, slots.KindBadRequest, kind(err))
	_, err = pool.New(newFleet(), nil, pool.Config{Templates: []pool.Template{fixed(), fixed()}})
	assert.ErrorContains(t, err, "twice")
}

func TestImpossibleRequestsAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		f.add("a", "t", 1)
		p := open(t, f, pool.Config{MaxWait: time.Minute})
		many := map[string]string{}
		for i := range 31 {
			many[strings.Repeat("x", i+1)] = ""
		}
		for want, change := range map[string]func(*pool.Request){
			"wait must be":       func(r *pool.Request) { r.Wait = time.Hour },
			"wait must":          func(r *pool.Request) { r.Wait = -1 },
			"ttl must be":        func(r *pool.Request) { r.TTL = -1 },
			"at least 1s":        func(r *pool.Request) { r.TTL = 100 * time.Microsecond },
			"trajectory must":    func(r *pool.Request) { r.Trajectory = "" },
			"1 to 256 bytes":     func(r *pool.Request) { r.Trajectory = strings.Repeat("x", 257) },
			"labels that begin":  func(r *pool.Request) { r.Labels = map[string]string{"berth.grant": "x"} },
			"at most 29 labels":  func(r *pool.Request) { r.Labels = many },
			"label and its valu": func(r *pool.Request) { r.Labels = map[string]string{"x": strings.Repeat("x", 257)} },
		} {
			r := pool.Request{Template: "t", Trajectory: "x"}
			change(&r)
			_, err := p.Acquire(t.Context(), r)
			assert.Equal(t, slots.KindBadRequest, kind(err), want)
			require.ErrorContains(t, err, want)
		}
		held := acquire(t, p, "x")
		_, err := p.Acquire(t.Context(), pool.Request{Template: "t", Trajectory: "x", Labels: map[string]string{"x": strings.Repeat("x", 5000)}})
		assert.Equal(t, slots.KindBadRequest, kind(err), "also of who holds a slot")
		_, err = p.Renew(t.Context(), held.Ref(), time.Millisecond)
		assert.Equal(t, slots.KindBadRequest, kind(err))
		_, err = p.Release(t.Context(), held.Ref(), true)
		require.NoError(t, err)
		_, err = p.Acquire(t.Context(), pool.Request{Template: "u", Trajectory: "x"})
		assert.Equal(t, slots.KindNotFound, kind(err))
		_, err = p.Lookup(t.Context(), "u", "x")
		assert.Equal(t, slots.KindNotFound, kind(err))
		assert.Equal(t, 1, p.Stats()[0].Available)
	})
}

func FuzzParseRef(f *testing.F) {
	f.Add("default-x7:slot_3:17")
	f.Add("a:b:0")
	f.Add(":::")
	f.Add("a:b:01")
	f.Add("a:b:18446744073709551616")
	f.Fuzz(func(t *testing.T, text string) {
		ref, err := pool.ParseRef(text)
		if err != nil {
			assert.Equal(t, slots.KindBadRequest, kind(err))
			return
		}
		assert.Equal(t, text, ref.String(), "one text for one lease")
		assert.NotZero(t, ref.Token)
	})
}
