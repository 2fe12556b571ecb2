package workspace

import (
	"bytes"
	"encoding/binary"
	"unsafe"

	"golang.org/x/sys/unix"
)

// direntSize is the buffer of one getdents call: some 1 000 names.
const direntSize = 32 << 10

// readNames calls each for every name in the directory but "." and "..", as
// the kernel gives them, from the start. The kind is a DT_ value and may be
// DT_UNKNOWN. The name is only valid during the call.
func readNames(dir handle, buf []byte, each func(name []byte, kind uint8) error) error {
	if _, err := unix.Seek(int(dir), 0, 0); err != nil {
		return err
	}
	for {
		n, err := retry(func() (int, error) { return unix.ReadDirent(int(dir), buf) })
		if err != nil || n <= 0 {
			return err
		}
		for rest := buf[:n]; len(rest) > 0; {
			name, kind, size := parseDirent(rest)
			if size == 0 {
				return unix.EIO
			}
			rest = rest[size:]
			if s := string(name); s == "." || s == ".." {
				continue
			}
			if err := each(name, kind); err != nil {
				return err
			}
		}
	}
}

// parseDirent reads the record at the start of buf: struct linux_dirent64.
// size is 0 when there is none.
func parseDirent(buf []byte) (name []byte, kind uint8, size int) {
	const (
		sizeAt = unsafe.Offsetof(unix.Dirent{}.Reclen)
		kindAt = unsafe.Offsetof(unix.Dirent{}.Type)
		nameAt = int(unsafe.Offsetof(unix.Dirent{}.Name))
	)
	if len(buf) < nameAt {
		return nil, 0, 0
	}
	size = int(binary.NativeEndian.Uint16(buf[sizeAt:]))
	if size < nameAt || size > len(buf) {
		return nil, 0, 0
	}
	name, _, _ = bytes.Cut(buf[nameAt:size], []byte{0})
	return name, buf[kindAt], size
}
