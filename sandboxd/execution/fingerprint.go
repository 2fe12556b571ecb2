package execution

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"slices"

	"berth/sandboxd/api"
)

// Fingerprint is the content of a call as far as it decides what happens:
// slot, tool, arguments, timeout and lease token. Arguments are compared as
// JSON values: key order, white space and escapes do not matter, of a
// duplicate key the last one counts, and numbers are compared digit by digit.
// Absent, null and empty arguments are the same.
//
// The token is part of it because a result belongs to one tenancy: the next
// tenant of the slot never gets it by the same id.
func Fingerprint(call api.Call) [32]byte {
	hash := sha256.New()
	w := digest{bufio.NewWriterSize(hash, 512)}
	w.text('s', call.SlotID)
	w.text('t', call.Tool)
	if call.Token != nil {
		w.head('k', *call.Token)
	}
	// A Timeout gives back what was sent, and never fails to.
	timeout, _ := call.Timeout.MarshalJSON()
	w.json(timeout)
	if args := bytes.TrimSpace(call.Args); len(args) == 0 || string(args) == "null" {
		w.json([]byte("{}"))
	} else {
		w.json(args)
	}
	// A hash takes every write.
	_ = w.Flush()
	return [32]byte(hash.Sum(nil))
}

// digest writes values so that no two different ones give the same bytes:
// each with a tag, and its length or count before what it holds.
type digest struct{ *bufio.Writer }

func (d digest) head(tag byte, n uint64) {
	_ = d.WriteByte(tag)
	_, _ = d.Write(binary.LittleEndian.AppendUint64(d.AvailableBuffer(), n))
}

func (d digest) text(tag byte, s string) {
	d.head(tag, uint64(len(s)))
	_, _ = d.WriteString(s)
}

// json writes one JSON value in canonical form. What is no single value, or
// nests deeper than encoding/json reads, counts by its bytes.
func (d digest) json(text []byte) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var v any
	err := decoder.Decode(&v)
	if _, more := decoder.Token(); err != nil || !errors.Is(more, io.EOF) {
		d.head('!', uint64(len(text)))
		_, _ = d.Write(text)
		return
	}
	d.value(v)
}

// value recurses no deeper than encoding/json has read.
func (d digest) value(v any) {
	switch v := v.(type) {
	case map[string]any:
		d.head('o', uint64(len(v)))
		for _, k := range slices.Sorted(maps.Keys(v)) {
			d.text('"', k)
			d.value(v[k])
		}
	case []any:
		d.head('a', uint64(len(v)))
		for _, e := range v {
			d.value(e)
		}
	case string:
		d.text('"', v)
	case json.Number:
		d.text('n', v.String())
	case bool:
		if v {
			d.head('b', 1)
		} else {
			d.head('b', 0)
		}
	default:
		d.head('0', 0)
	}
}
