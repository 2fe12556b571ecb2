package orchestrator_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/slots/need"
	"berth/slots/sandbox/sandboxtest"
)

// chromium finds the browser that the test drives.
func chromium() (string, error) {
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errors.New("no chromium on PATH: apt-get install -y chromium")
}

// browser is one page of a real browser.
type browser struct {
	t   *testing.T
	ctx context.Context //nolint:containedctx // how chromedp names a page

	mu       sync.Mutex
	problems []string // what the page complained of
}

// newBrowser starts a browser, which ends with the test.
func newBrowser(t *testing.T) *browser {
	t.Helper()
	path, err := chromium()
	need.Facility(t, "chromium", err)
	allocated, free := chromedp.NewExecAllocator(context.Background(), append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.UserDataDir(t.TempDir()), chromedp.WSURLReadTimeout(patience),
		chromedp.Flag("disable-dev-shm-usage", true), chromedp.Flag("no-proxy-server", true),
	)...)
	ctx, end := chromedp.NewContext(allocated)
	ctx, timeout := context.WithTimeout(ctx, 5*patience)
	t.Cleanup(func() {
		timeout()
		end()
		free()
	})
	b := &browser{t: t, ctx: ctx}
	require.NoError(t, chromedp.Do(ctx), "chromium does not start")
	require.NoError(t, chromedp.Listen(ctx, b.hear))
	_, err = chromedp.Call(ctx, log.Enable, cdp.Empty{})
	require.NoError(t, err)
	_, err = chromedp.Call(ctx, runtime.Enable, cdp.Empty{})
	require.NoError(t, err)
	return b
}

func (b *browser) hear(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		text := e.ExceptionDetails.Text
		if e.ExceptionDetails.Exception != nil {
			text += ": " + e.ExceptionDetails.Exception.Description
		}
		b.problems = append(b.problems, text)
	case *log.EventEntryAdded:
		// That a token is wanted is an answer of the server's.
		if e.Entry.Level == log.EntryLevelError && !strings.Contains(e.Entry.Text, "401") && !strings.Contains(e.Entry.Text, "403") {
			b.problems = append(b.problems, e.Entry.Text)
		}
	}
}

func (b *browser) do(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	require.NoError(b.t, chromedp.Do(b.ctx, actions...))
}

// js is what the expression comes to, as JSON.
func (b *browser) js(expression string) string {
	b.t.Helper()
	value, err := chromedp.Run(b.ctx, chromedp.Evaluate[string]("JSON.stringify("+expression+")"))
	require.NoError(b.t, err)
	return value
}

// until waits until the expression is true.
func (b *browser) until(expression string) {
	b.t.Helper()
	for end := time.Now().Add(patience); b.js("Boolean("+expression+")") != "true"; time.Sleep(50 * time.Millisecond) {
		require.True(b.t, time.Now().Before(end), "%s: the page shows %s", expression, b.js("document.body.innerText"))
	}
}

// kinds says how many slots are shown as each kind.
func (b *browser) kinds(want string) {
	b.t.Helper()
	b.until(fmt.Sprintf(`JSON.stringify([...document.querySelectorAll("#containers .slot")].map((s) => s.dataset.kind).sort()) === %q`, want))
}

// shoot keeps a picture in the folder that BERTH_SCREENSHOTS names, if any.
func (b *browser) shoot(name string) {
	b.t.Helper()
	dir := os.Getenv("BERTH_SCREENSHOTS")
	if dir == "" {
		return
	}
	for _, scheme := range []string{"light", "dark"} {
		for width, height := range map[int64]int64{1280: 1000, 360: 1500} {
			b.do(chromedp.EmulateViewport(width, height))
			_, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
				Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
			})
			require.NoError(b.t, err)
			picture, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
			require.NoError(b.t, err)
			require.NoError(b.t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("%s-%d-%s.png", name, width, scheme)), picture, 0o600))
		}
	}
	b.do(chromedp.EmulateViewport(1280, 900))
}

// hostileID is a trajectory's name that tries to be markup, to turn the
// direction of the text around it, and to be long.
var hostileID = `<script>document.title="owned"</script><img src=x onerror='document.title="owned"'>&lt;"` +
	"\u202e" + strings.Repeat("長い名前", 10) + "\x07"

// quarantine has the page believe that its first slot could not be proven
// clean, for a reason that is markup, and says what is shown of it. It does so
// before the next event corrects the page.
const quarantine = `(() => {
	const container = structuredClone([...state.containers.values()].sort((a, b) => a.id < b.id ? -1 : 1)[0]);
	Object.assign(container.slots[0], {state: "quarantined", reason: "2 processes are left: <b>sleep</b>", receipt: {clean: false, generation: 7, ms: 12,
		checks: [{name: "processes", ok: false, note: "<i>2 left</i>"}, {name: "mounts", ok: true}, {name: "files", ok: true}]}});
	take("change", {at: new Date().toISOString(), pools: state.pools, dispatch: state.dispatch, containers: [container], seconds: []});
	return [$("quarantine").checkVisibility(), document.querySelector("#quarantine p").textContent,
		document.querySelector("#quarantine .bad").textContent, $("tile-quarantined").textContent];
})()`

func TestTheDashboardShowsAndSteersThePool(t *testing.T) {
	b := newBrowser(t)
	i := start(t, sandboxtest.DataDir(t))
	b.do(chromedp.EmulateViewport(1280, 900), chromedp.Navigate(i.url+"/"))

	// It asks for the token and keeps it in the tab.
	b.until(`document.querySelector("#token-dialog").open`)
	b.do(chromedp.SendKeys("#token-input", "wrong"), chromedp.Click("#token-form button[type=submit]"))
	b.until(`document.querySelector("#token-text").textContent.includes("does not know this token")`)
	b.do(chromedp.SendKeys("#token-input", operatorToken), chromedp.Click("#token-form button[type=submit]"))
	b.until(`document.querySelector("#live").dataset.state === "live"`)
	assert.Equal(t, `[1,0,""]`, b.js(`[sessionStorage.length, localStorage.length, document.cookie]`))
	b.kinds(`["free","free","free","free"]`)

	// A call changes the colour of its slot, and its trajectory's name is text.
	ended := make(chan reply, 1)
	go func() {
		r, err := i.try(http.MethodPost, "/execute", call(hostileID, "u", "until test -e go; do sleep 0.05; done"))
		assert.NoError(t, err)
		ended <- r
	}()
	b.kinds(`["executing","free","free","free"]`)
	assert.Equal(t, `"1"`, b.js(`document.querySelector("#tile-held").textContent`))
	leases := i.get("/v1/leases").object()["leases"].([]any)
	require.Len(t, leases, 1)
	lease := leases[0].(map[string]any)
	require.Equal(t, 201, i.do(http.MethodPut, path(lease, "/files/go"), "").status)
	r := <-ended
	assert.Equal(t, true, r.object()["success"], "%s", r.body)
	b.kinds(`["free","free","free","leased"]`)
	id, err := json.Marshal(hostileID)
	require.NoError(t, err)
	b.until(fmt.Sprintf(`document.querySelector("#containers .slot[data-kind=leased]").title.includes(%s)`, id))
	b.until(fmt.Sprintf(`document.querySelector("#slowest .who")?.textContent === %s`, id))
	assert.Equal(t, `["Berth",1,0,0]`, b.js(`[document.title, document.scripts.length, document.images.length, document.querySelectorAll("main script").length]`))
	b.until(`[...state.seconds.values()].some((s) => s.calls === 1)`)

	// Buttons do what they say.
	b.do(chromedp.Click("#containers .slot[data-kind=leased]"), chromedp.WaitVisible("#slot-release"))
	assert.Equal(t, "true", b.js(fmt.Sprintf(`document.querySelector("#slot-facts").textContent.includes(%s)`, id)))
	b.do(chromedp.Click("#slot-release"), chromedp.WaitVisible("#ask-yes"), chromedp.Click("#ask-yes"))
	b.kinds(`["free","free","free","free"]`)
	assert.Empty(t, i.get("/v1/leases").object()["leases"])
	b.do(chromedp.Click("#containers > li:first-child .row button:first-child"))
	b.until(`document.querySelector("#containers > li:first-child .badge").dataset.state === "cordoned"`)
	states := func() (all []any) {
		for _, c := range i.get("/v1/containers").object()["containers"].([]any) {
			all = append(all, c.(map[string]any)["state"])
		}
		return all
	}
	assert.ElementsMatch(t, []any{"cordoned", "ready"}, states())
	b.do(chromedp.Click("#containers > li:first-child .row button:first-child"))
	b.until(`document.querySelector("#containers > li:first-child .badge").dataset.state === "ready"`)
	first := b.js(`document.querySelector("#containers > li:first-child").dataset.container`)
	b.do(chromedp.Click("#containers > li:first-child .row button:nth-child(3)"), chromedp.WaitVisible("#ask-yes"), chromedp.Click("#ask-yes"))
	b.until(fmt.Sprintf(`document.querySelectorAll("#containers > li").length === 2 && !document.querySelector("[data-container=" + CSS.escape(%s) + "]")`, first))

	// A slot that is set aside is there with its reason and what was not proven.
	assert.Equal(t, `[true,"2 processes are left: <b>sleep</b>","✕ processes: <i>2 left</i>","1"]`, b.js(quarantine))

	// Why no container starts is said as text, and only as long as it is so.
	assert.Equal(t, `["no container starts: Failed to pull <b>image</b>",true,"",false]`, b.js(`(() => {
		const shown = () => [$("tile-free-note").textContent, $("tile-free-box").classList.contains("alarm")];
		const pools = (trouble) => [{...state.pools[0], starting: 0, trouble}];
		const event = (trouble) => ({at: new Date().toISOString(), pools: pools(trouble), dispatch: state.dispatch, containers: [], seconds: []});
		take("change", event({failed_starts: 1, words: "Failed to pull <b>image</b>"}));
		const first = shown();
		take("change", event(undefined));
		return [...first, ...shown()];
	})()`))

	// What a trainer may not do says so.
	b.js(fmt.Sprintf(`(sessionStorage.setItem("berth.token", %q), reconnect(), true)`, trainerToken))
	b.until(`document.querySelector("#live").dataset.state === "live"`)
	b.do(chromedp.Click("#containers > li:first-child .row button:first-child"))
	b.until(`document.querySelector("#token-dialog").open && document.querySelector("#token-text").textContent.includes("operators")`)
	b.do(chromedp.Click("#token-dialog [data-close]"))

	// Nothing is wider than a small screen.
	b.do(chromedp.EmulateViewport(360, 780))
	assert.Equal(t, "360", b.js(`document.documentElement.scrollWidth`))
	b.do(chromedp.EmulateViewport(1280, 900))

	b.mu.Lock()
	defer b.mu.Unlock()
	assert.Empty(t, b.problems, "the page complains of nothing, its content policy included")
}

// TestPicturesOfTheDashboard makes pictures for people to look at.
func TestPicturesOfTheDashboard(t *testing.T) {
	if os.Getenv("BERTH_SCREENSHOTS") == "" {
		t.Skip("needs BERTH_SCREENSHOTS to name the folder for the pictures")
	}
	b := newBrowser(t)
	i := start(t, sandboxtest.DataDir(t), "--containers", "4", "--slots", "8")
	b.do(chromedp.EmulateViewport(1280, 900), chromedp.Navigate(i.url+"/"))
	b.until(`document.querySelector("#token-dialog").open`)
	b.do(chromedp.SendKeys("#token-input", operatorToken), chromedp.Click("#token-form button[type=submit]"))
	ctx, cancel := context.WithTimeout(t.Context(), 25*time.Second)
	defer cancel()
	var group sync.WaitGroup
	for n := range 24 {
		group.Go(func() {
			for k := 0; ctx.Err() == nil; k++ {
				id := fmt.Sprintf("rollout-%d/step-%d", n, k%7)
				_, _ = i.try( //nolint:contextcheck // it has its own end
					http.MethodPost, "/execute", call(fmt.Sprintf("swe-train-%03d", n), id+fmt.Sprint(k), fmt.Sprintf("sleep %d.%d; echo", n%6/5*3, (n*k)%9)),
				)
			}
		})
	}
	i.run(hostileID, "sleep 4")
	<-ctx.Done()
	b.js(quarantine)
	b.js(`(take = () => {}, true)`) // so that it stays
	b.shoot("web")
	b.do(chromedp.Click("#containers .slot[data-kind=leased]"), chromedp.WaitVisible("#slot-release"))
	b.shoot("web-slot")
	group.Wait()
}
