package workspace

import (
	"bytes"
	"path"
	"strings"
	"unicode/utf8"
)

// sniffSize is how much of a file's beginning decides about its type.
const sniffSize = 512

// mimeType guesses the media type of a file from its name, else from its
// first bytes. The names' answers are those of Python's mimetypes, which the
// reference uses.
func mimeType(name string, start []byte) string {
	if m, ok := mimeByExtension[strings.ToLower(path.Ext(name))]; ok {
		return m
	}
	for _, s := range mimeBySignature {
		if bytes.HasPrefix(start, []byte(s.prefix)) {
			return s.mime
		}
	}
	if isText(start[:min(len(start), sniffSize)]) {
		return "text/plain"
	}
	return "application/octet-stream"
}

// isText reports whether b is UTF-8 without control characters, a rune cut
// off at the end allowed.
func isText(b []byte) bool {
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		switch {
		case r == utf8.RuneError && n == 1:
			return !utf8.FullRune(b)
		case r < 0x20 && !strings.ContainsRune("\t\n\r\f\b\x1b", r):
			return false
		}
		b = b[n:]
	}
	return true
}

var mimeBySignature = []struct{ prefix, mime string }{
	{"\x89PNG\r\n\x1a\n", "image/png"},
	{"\xff\xd8\xff", "image/jpeg"},
	{"GIF87a", "image/gif"},
	{"GIF89a", "image/gif"},
	{"%PDF-", "application/pdf"},
	{"PK\x03\x04", "application/zip"},
	{"\x1f\x8b\x08", "application/gzip"},
	{"BZh", "application/x-bzip2"},
	{"\xfd7zXZ\x00", "application/x-xz"},
	{"\x28\xb5\x2f\xfd", "application/zstd"},
	{"\x7fELF", "application/x-executable"},
	{"SQLite format 3\x00", "application/vnd.sqlite3"},
	{"\x00asm", "application/wasm"},
	{"#!", "text/x-script"},
}

var mimeByExtension = map[string]string{
	".7z": "application/x-7z-compressed", ".avif": "image/avif", ".bmp": "image/bmp", ".bz2": "application/x-bzip2",
	".c": "text/x-c", ".cc": "text/x-c++", ".cpp": "text/x-c++", ".css": "text/css", ".csv": "text/csv",
	".diff": "text/x-diff", ".gif": "image/gif", ".go": "text/x-go", ".gz": "application/gzip", ".h": "text/x-c",
	".htm": "text/html", ".html": "text/html", ".ico": "image/vnd.microsoft.icon", ".ipynb": "application/x-ipynb+json",
	".java": "text/x-java", ".jpeg": "image/jpeg", ".jpg": "image/jpeg", ".js": "text/javascript",
	".json": "application/json", ".jsonl": "application/jsonl", ".log": "text/plain", ".md": "text/markdown",
	".mjs": "text/javascript", ".mp3": "audio/mpeg", ".mp4": "video/mp4", ".npy": "application/octet-stream",
	".parquet": "application/vnd.apache.parquet", ".patch": "text/x-diff", ".pdf": "application/pdf", ".png": "image/png",
	".py": "text/x-python", ".rs": "text/x-rust", ".sh": "application/x-sh", ".svg": "image/svg+xml",
	".tar": "application/x-tar", ".tgz": "application/gzip", ".tiff": "image/tiff", ".toml": "application/toml",
	".ts": "text/x-typescript", ".tsv": "text/tab-separated-values", ".txt": "text/plain", ".wasm": "application/wasm",
	".wav": "audio/x-wav", ".webm": "video/webm", ".webp": "image/webp", ".whl": "application/zip",
	".xml": "text/xml", ".xz": "application/x-xz", ".yaml": "application/yaml", ".yml": "application/yaml",
	".zip": "application/zip", ".zst": "application/zstd",
}
