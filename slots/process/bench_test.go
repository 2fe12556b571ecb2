package process

import (
	"bytes"
	"os"
	"testing"
)

func BenchmarkCaptureOfOneLine(b *testing.B) {
	line := []byte("ok: 12 tests passed in 0.2 s\n")
	b.ReportAllocs()
	for b.Loop() {
		c := NewCapture(CaptureConfig{})
		_, _ = c.Write(line)
		_ = c.Close()
		_ = c.Text()
	}
}

func BenchmarkCaptureWrite(b *testing.B) {
	chunk := bytes.Repeat([]byte("x"), 32<<10)
	for name, config := range map[string]CaptureConfig{
		"window": {},
		"spill": {Spill: func() (Spill, error) {
			return os.CreateTemp(b.TempDir(), "spill")
		}},
	} {
		b.Run(name, func(b *testing.B) {
			c := NewCapture(config)
			b.SetBytes(int64(len(chunk)))
			b.ReportAllocs()
			for b.Loop() {
				_, _ = c.Write(chunk)
			}
			_ = c.Release()
		})
	}
}

func BenchmarkCaptureText(b *testing.B) {
	c := NewCapture(CaptureConfig{})
	for range 100 {
		_, _ = c.Write(bytes.Repeat([]byte("x"), 32<<10))
	}
	b.ReportAllocs()
	for b.Loop() {
		_ = c.Text()
	}
}
