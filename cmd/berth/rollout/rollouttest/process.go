package rollouttest

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
)

// actAsAgent makes a test binary behave like "sandboxd serve".
const actAsAgent = "BERTH_TEST_ACT_AS_AGENT"

// Main is the TestMain of packages that use Binary. What is to be done after
// the tests is done in its order.
func Main(m *testing.M, after ...func()) {
	if os.Getenv(actAsAgent) != "" {
		os.Exit(serve(os.Args[1:]))
	}
	status := m.Run()
	for _, do := range after {
		do()
	}
	os.Exit(status)
}

// Binary is the path of a binary that serves the stand-in container like
// "sandboxd serve". Temporary directories lie in one of the test's from here on.
func Binary(tb testing.TB) string {
	tb.Helper()
	tb.Setenv(actAsAgent, "1")
	tb.Setenv("TMPDIR", tb.TempDir())
	me, err := os.Executable()
	if err != nil {
		tb.Fatal(err)
	}
	return me
}

// serve serves the stand-in container until it is told to stop.
func serve(args []string) int {
	flags := flag.NewFlagSet("serve", flag.ExitOnError)
	listen := flags.String("listen", "", "")
	slots := flags.Int("slots", 0, "")
	dir := flags.String("data-dir", "", "")
	tokenFile := flags.String("token-file", "", "")
	refuse := flags.Bool("refuse", false, "do not start")
	status := flags.Int("status", 0, "end with this status, after a long log")
	_ = flags.Parse(args[1:])
	if *refuse {
		_, _ = io.WriteString(os.Stderr, "isolation: wanted ns, got landlock\n")
		return 78
	}
	token, err := os.ReadFile(*tokenFile)
	if err != nil {
		return 1
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	server := http.Server{Addr: *listen, Handler: Container{Dir: *dir, Slots: *slots, Token: string(token)}}
	go func() { _ = server.ListenAndServe() }()
	<-ctx.Done()
	if *status != 0 {
		fmt.Fprintf(os.Stderr, "first line\n%s\ntold to end with %d\n", strings.Repeat("x", 8<<10), *status)
	}
	return *status
}
