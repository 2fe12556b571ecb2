package httpapi

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth/sandboxd/api"
	"berth/sandboxd/execution"
	"berth/slots"
)

const benchCall = `{"slot_id":"slot_0","tool":"bash","args":{"command":"true"},"timeout":30}`

// instant answers every call at once, so that what is measured is HTTP.
type instant struct {
	*fakeKeeper
	result api.Result
}

func (i *instant) Run(context.Context, api.Call) *execution.Execution {
	return execution.Refused(i.result)
}

func benchServer(b *testing.B) string {
	b.Helper()
	iso := slots.NewIsolation(slots.Axes{slots.AxisFS: "mntns", slots.AxisProc: "pidns", slots.AxisKill: "pidns"})
	result := ran("")
	result.ExecutionID = "7f8a3c52-8a4e-4d7e-9d0e-0a3f6a1f5b11"
	result.Metadata.Isolation = &iso
	result.Metadata.Details = map[string]any{"sandboxed": true, "network_isolated": false}
	k := &instant{newFakeKeeper(b), result}
	deps := k.deps(io.Discard)
	deps.Executions = k
	server := New(deps, Config{Token: testToken})
	ln, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	require.NoError(b, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx, ln) }()
	b.Cleanup(func() {
		cancel()
		require.NoError(b, <-ended)
	})
	return ln.Addr().String()
}

// BenchmarkExecute is the whole way of a call over loopback with Go's own
// client on a connection that is kept.
func BenchmarkExecute(b *testing.B) {
	addr := benchServer(b)
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	b.ReportAllocs()
	for b.Loop() {
		req, _ := http.NewRequest(http.MethodPost, "http://"+addr+"/execute", strings.NewReader(benchCall))
		req.Header.Set("Authorization", "Bearer "+testToken)
		res, err := client.Do(req)
		if err != nil || res.StatusCode != http.StatusOK {
			b.Fatal(err, res)
		}
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
	}
}

// BenchmarkExecuteRaw leaves the cost of Go's client out: it writes bytes and
// reads an answer of the length that the first one had.
func BenchmarkExecuteRaw(b *testing.B) {
	benchmarkRaw(b, benchServer(b), "POST /execute HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "+testToken+
		"\r\nContent-Type: application/json\r\nContent-Length: "+itoa(len(benchCall))+"\r\n\r\n"+benchCall)
}

// BenchmarkStreamFirstByte is the time from a command's write of its first
// output to its arrival at the client.
func BenchmarkStreamFirstByte(b *testing.B) {
	c := start(b, Config{Token: testToken})
	written, seen := make(chan time.Time, 1), make(chan struct{})
	c.run = func(_ context.Context, _ api.Call, stdout, _ io.Writer) api.Result {
		written <- time.Now()
		_, _ = io.WriteString(stdout, "x")
		<-seen
		return ran("x")
	}
	var total time.Duration
	for b.Loop() {
		req, err := http.NewRequest(http.MethodPost, "http://"+c.addr+"/execute", strings.NewReader(benchCall))
		if err != nil {
			b.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+testToken)
		req.Header.Set("Accept", api.TypeNDJSON)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			b.Fatal(err)
		}
		r := bufio.NewReader(res.Body)
		for line := ""; !strings.Contains(line, `"chunk"`); {
			if line, err = r.ReadString('\n'); err != nil {
				b.Fatal(err)
			}
		}
		total += time.Since(<-written)
		seen <- struct{}{}
		_, _ = io.Copy(io.Discard, r)
		_ = res.Body.Close()
	}
	b.ReportMetric(float64(total.Microseconds())/float64(b.N), "µs/first-byte")
}

// BenchmarkHealthRaw is the floor of a request that does next to nothing.
func BenchmarkHealthRaw(b *testing.B) {
	benchmarkRaw(b, benchServer(b), "GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
}

// BenchmarkEchoRaw is the floor of net/http itself on this machine.
func BenchmarkEchoRaw(b *testing.B) {
	ln, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	require.NoError(b, err)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, `{}`)
	})}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ln) }()
	b.Cleanup(func() {
		_ = server.Close()
		require.ErrorIs(b, <-ended, http.ErrServerClosed)
	})
	benchmarkRaw(b, ln.Addr().String(), "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: "+itoa(len(benchCall))+"\r\n\r\n"+benchCall)
}

func benchmarkRaw(b *testing.B, addr, request string) {
	b.Helper()
	conn, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", addr)
	require.NoError(b, err)
	defer func() { _ = conn.Close() }()
	r := bufio.NewReader(conn)
	_, err = io.WriteString(conn, request)
	require.NoError(b, err)
	res, err := http.ReadResponse(r, nil)
	require.NoError(b, err)
	require.Equal(b, http.StatusOK, res.StatusCode)
	_, _ = io.Copy(io.Discard, res.Body)
	_ = res.Body.Close()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := io.WriteString(conn, request); err != nil {
			b.Fatal(err)
		}
		if err := skipAnswer(r); err != nil {
			b.Fatal(err)
		}
	}
}

// skipAnswer reads one answer with a Content-Length.
func skipAnswer(r *bufio.Reader) error {
	length := 0
	for {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return err
		}
		if len(line) <= 2 {
			break
		}
		if text, ok := strings.CutPrefix(string(line), "Content-Length: "); ok {
			for _, d := range strings.TrimSpace(text) {
				length = length*10 + int(d-'0')
			}
		}
	}
	_, err := r.Discard(length)
	return err
}

func itoa(n int) string {
	if n < 10 {
		return string(rune('0' + n))
	}
	return itoa(n/10) + string(rune('0'+n%10))
}
