package holder

import (
	"encoding/binary"
	"errors"
)

// The two messages of every command, its request and the report of its end,
// are packed by hand: as JSON they cost the holder as much as its fork. A
// number is a varint, a text its length and its bytes, a list its count and
// its elements.

// packed is a message with an encoding of its own.
type packed interface{ pack(dst []byte) []byte }

// unpacked reads what packed has written.
type unpacked interface{ unpack(from *packet) }

func (r spawnRequest) pack(dst []byte) []byte {
	dst = packFlags(dst, r.NoStdin, r.Script, r.Keep, r.Collect)
	dst = packTexts(dst, r.Argv)
	dst = packTexts(dst, r.Env)
	dst = packText(dst, r.Cwd)
	return packTexts(dst, r.Confine)
}

func (r *spawnRequest) unpack(from *packet) {
	from.flags(&r.NoStdin, &r.Script, &r.Keep, &r.Collect)
	r.Argv = from.texts()
	r.Env = from.texts()
	r.Cwd = string(from.text())
	r.Confine = from.texts()
}

func (r exitReport) pack(dst []byte) []byte {
	dst = packFlags(dst, r.Alone)
	dst = binary.AppendUvarint(dst, uint64(r.Status))
	for _, n := range [...]int64{r.SpawnNS, r.RunNS, r.CPUNS, r.MaxRSS} {
		dst = binary.AppendVarint(dst, n)
	}
	for _, text := range r.Output {
		dst = packText(dst, text)
	}
	return dst
}

func (r *exitReport) unpack(from *packet) {
	from.flags(&r.Alone)
	r.Status = uint32(from.count(1 << 32)) //nolint:gosec // below the limit
	for _, n := range [...]*int64{&r.SpawnNS, &r.RunNS, &r.CPUNS, &r.MaxRSS} {
		*n = from.number()
	}
	for n := range r.Output {
		// A copy: the packet is the next message's.
		r.Output[n] = append([]byte(nil), from.text()...)
	}
}

func packFlags(dst []byte, flags ...bool) []byte {
	var b byte
	for i, flag := range flags {
		if flag {
			b |= 1 << i
		}
	}
	return append(dst, b)
}

func packText[T string | []byte](dst []byte, text T) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(text))), text...)
}

func packTexts(dst []byte, list []string) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(list)))
	for _, text := range list {
		dst = packText(dst, text)
	}
	return dst
}

var errPacked = errors.New("not what was packed")

// packet is what is left to unpack. After an error everything in it is zero.
type packet struct {
	rest []byte
	err  error
}

func (p *packet) fail() {
	p.rest, p.err = nil, errPacked
}

// end reports what went wrong, be it that something is left over.
func (p *packet) end() error {
	if len(p.rest) > 0 {
		p.fail()
	}
	return p.err
}

func (p *packet) flags(flags ...*bool) {
	if len(p.rest) == 0 || p.rest[0]>>len(flags) != 0 {
		p.fail()
		return
	}
	for i, flag := range flags {
		*flag = p.rest[0]&(1<<i) != 0
	}
	p.rest = p.rest[1:]
}

func (p *packet) number() int64 {
	n, size := binary.Varint(p.rest)
	if size <= 0 {
		p.fail()
		return 0
	}
	p.rest = p.rest[size:]
	return n
}

// count is a number below the limit.
func (p *packet) count(limit uint64) uint64 {
	n, size := binary.Uvarint(p.rest)
	if size <= 0 || n >= limit {
		p.fail()
		return 0
	}
	p.rest = p.rest[size:]
	return n
}

// text is valid as long as what was unpacked is.
func (p *packet) text() []byte {
	n := p.count(maxBody)
	if n > uint64(len(p.rest)) {
		p.fail()
		return nil
	}
	text := p.rest[:n]
	p.rest = p.rest[n:]
	return text
}

func (p *packet) texts() []string {
	// Each takes a byte at least: what was sent bounds what is made of it.
	n := p.count(uint64(len(p.rest)))
	if n == 0 {
		return nil
	}
	list := make([]string, 0, n)
	for range n {
		list = append(list, string(p.text()))
	}
	return list
}
