package api

// Bounds of the artifact routes where the request names none.
const (
	DefaultArtifactBytes   = 5_000_000
	DefaultArtifactEntries = 5_000
)

// Encodings and formats of artifacts.
const (
	EncodingText   = "text"
	EncodingBase64 = "base64"
	FormatTarGz    = "tar.gz"
	FormatTgz      = "tgz"
)

// ReadRequest is the body of POST /artifacts/read.
type ReadRequest struct {
	SlotID        string  `json:"slot_id"`
	Path          string  `json:"path"`
	Encoding      string  `json:"encoding,omitempty"`  // "text" (default) or "base64"
	MaxBytes      *int64  `json:"max_bytes,omitempty"` // absent: DefaultArtifactBytes
	IncludeSHA256 bool    `json:"include_sha256,omitempty"`
	Token         *uint64 `json:"token,omitempty"` // the lease's token; required while the slot has a lease
}

// ReadAnswer answers POST /artifacts/read.
type ReadAnswer struct {
	Success   bool   `json:"success"`
	Content   string `json:"content"`
	Encoding  string `json:"encoding"`
	Truncated bool   `json:"truncated"` // exact: the file is longer than Content
	Bytes     int64  `json:"bytes"`     // of Content before its encoding
	FileSize  int64  `json:"file_size"`
	Path      string `json:"path"` // relative to the workspace
	Mime      string `json:"mime"`
	// SHA256 is of the bytes of Content, FileSHA256 of the whole file; both
	// hex, and only there when the request asked.
	SHA256     string `json:"sha256,omitempty"`
	FileSHA256 string `json:"file_sha256,omitempty"`
}

// ListRequest is the body of POST /artifacts/list.
type ListRequest struct {
	SlotID     string  `json:"slot_id"`
	Path       string  `json:"path,omitempty"` // "" is the workspace
	Recursive  bool    `json:"recursive,omitempty"`
	MaxEntries *int    `json:"max_entries,omitempty"` // absent: DefaultArtifactEntries
	Token      *uint64 `json:"token,omitempty"`
}

// ListAnswer answers POST /artifacts/list. Entries are sorted by path.
type ListAnswer struct {
	Success   bool    `json:"success"`
	Entries   []Entry `json:"entries"`
	Truncated bool    `json:"truncated"` // exact: there are more entries
}

// Entry is one name in a listing. A link is listed as itself.
type Entry struct {
	Path       string  `json:"path"` // from the workspace
	IsDir      bool    `json:"is_dir"`
	Type       string  `json:"type"`  // file, dir, link, fifo, socket, char, block
	Size       int64   `json:"size"`  // bytes
	Mtime      float64 `json:"mtime"` // seconds since 1970
	Mode       uint32  `json:"mode"`  // permission bits
	LinkTarget string  `json:"link_target,omitempty"`
}

// Omission is something that was left out of an archive or not unpacked, and
// why.
type Omission struct {
	Path   string `json:"path"`
	Reason string `json:"reason"`
}

// ArchiveRequest is the body of POST /artifacts/archive.
type ArchiveRequest struct {
	SlotID     string  `json:"slot_id"`
	Path       string  `json:"path,omitempty"`        // "" is the workspace
	Format     string  `json:"format,omitempty"`      // "tar.gz" (default) or "tgz"
	MaxBytes   *int64  `json:"max_bytes,omitempty"`   // of the archive; absent: DefaultArtifactBytes
	MaxEntries *int    `json:"max_entries,omitempty"` // absent: DefaultArtifactEntries
	Token      *uint64 `json:"token,omitempty"`
}

// ArchiveAnswer answers POST /artifacts/archive.
type ArchiveAnswer struct {
	Success    bool   `json:"success"`
	Content    []byte `json:"content"` // base64 on the wire
	Encoding   string `json:"encoding"`
	Format     string `json:"format"`
	Bytes      int64  `json:"bytes"` // of Content before its encoding
	EntryCount int    `json:"entry_count"`
	Truncated  bool   `json:"truncated"` // entries beyond max_entries were left out
	// OmittedCount is how many files were left out, because no archive holds
	// their kind or the slot may not read them; Omitted names the first ones.
	// It is absent when Truncated: what comes later was not looked at.
	OmittedCount *int       `json:"omitted_count,omitempty"`
	Omitted      []Omission `json:"omitted,omitempty"`
}

// Headers of the raw file routes beside the standard ones.
const (
	HeaderToken    = "Berth-Token"       //nolint:gosec // the name of a header. The lease's token, decimal
	HeaderChecksum = "X-Checksum-Sha256" // hex, of the whole body
	HeaderMode     = "Berth-Mode"        // permission bits of the file, octal
)

// Trailers of a tree that is read.
const (
	HeaderEntries = "Berth-Entries" // how many entries the archive holds
	HeaderOmitted = "Berth-Omitted" // how many files were left out of it
)

// FileAnswer answers PUT /slots/{slot}/files/{path}.
type FileAnswer struct {
	Path    string `json:"path"` // relative to the workspace
	Size    int64  `json:"size"`
	SHA256  string `json:"sha256"` // hex
	Created bool   `json:"created"`
}

// UntarAnswer answers PUT /slots/{slot}/files/{path}?untar=1.
type UntarAnswer struct {
	Entries      int        `json:"entries"`
	Bytes        int64      `json:"bytes"`         // of files' content
	OmittedCount int        `json:"omitted_count"` // entries that were not unpacked
	Omitted      []Omission `json:"omitted,omitempty"`
}
