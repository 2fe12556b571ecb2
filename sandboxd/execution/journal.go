package execution

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// The journal is a directory of segments, files of framed records that are
// only ever appended to, by one write(2) per record. Nothing is synced: the
// journal survives the end of the process, not that of the machine.
//
// The rules that reading it back relies on:
//   - A record is whole or the last of its segment; what follows a torn one
//     in the same segment does not exist. A segment whose tail is in doubt is
//     cut back or never written again.
//   - Of the records of one id the last one holds.
//   - Segments go oldest first. A started record whose execution still runs
//     is written once more before its segment goes.

// segmentsPerJournal is how many segments the byte bound is divided into; one
// of them at a time is given up to make room.
const segmentsPerJournal = 8

const (
	segmentSuffix = ".journal"
	frameHeader   = 8              // length and CRC-32C of the payload, little endian
	recordHeader  = 1 + 8 + 32 + 2 // event, milliseconds since 1970, fingerprint, length of the id
)

// castagnoli is made when it is first needed: the same program starts for every
// slot, where it is not.
var castagnoli = sync.OnceValue(func() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) })

// event is what a record tells.
type event byte

const (
	eventStarted  event = 's'
	eventFinished event = 'f'
)

// record is one line of an execution's history.
type record struct {
	event       event
	at          time.Time
	fingerprint [32]byte
	id          string
	result      []byte // JSON of the result; empty unless finished
}

// appendTo appends the record's frame.
func (r record) appendTo(b []byte) []byte {
	start := len(b)
	b = append(b, make([]byte, frameHeader)...)
	b = append(b, byte(r.event))
	b = binary.LittleEndian.AppendUint64(b, uint64(r.at.UnixMilli()))
	b = append(b, r.fingerprint[:]...)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(r.id)))
	b = append(b, r.id...)
	b = append(b, r.result...)
	payload := b[start+frameHeader:]
	binary.LittleEndian.PutUint32(b[start:], uint32(len(payload)))
	binary.LittleEndian.PutUint32(b[start+4:], crc32.Checksum(payload, castagnoli()))
	return b
}

// cutRecord takes the first record off b. ok is false where none begins: at
// the end, and at a torn tail. The record's result shares b's memory.
func cutRecord(b []byte) (r record, rest []byte, ok bool) {
	if len(b) < frameHeader {
		return record{}, b, false
	}
	size, sum := binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:])
	if size < recordHeader || uint64(size) > uint64(len(b)-frameHeader) {
		return record{}, b, false
	}
	payload := b[frameHeader:][:size]
	idEnd := recordHeader + int(binary.LittleEndian.Uint16(payload[recordHeader-2:]))
	if crc32.Checksum(payload, castagnoli()) != sum || idEnd > len(payload) {
		return record{}, b, false
	}
	r = record{
		event:       event(payload[0]),
		at:          time.UnixMilli(int64(binary.LittleEndian.Uint64(payload[1:]))),
		fingerprint: [32]byte(payload[9:]),
		id:          string(payload[recordHeader:idEnd]),
		result:      payload[idEnd:],
	}
	return r, b[frameHeader+int(size):], r.event == eventStarted || r.event == eventFinished
}

// segment is one file of the journal.
type segment struct {
	number uint64
	size   int64
	last   time.Time // of its last record
}

// pending is a started record whose execution has not finished.
type pending struct {
	record
	segment uint64 // where it stands
}

// journal is the open journal of one Registry.
type journal struct {
	dir string
	max int64 // bytes of all segments together

	// mu guards all below and is held during writes: records are short, and
	// their order on disk is the order of events.
	mu       sync.Mutex
	file     *os.File  // the last of segments; nil when the next record begins a new one
	segments []segment // oldest first
	total    int64
	next     uint64 // number of the next segment
	running  map[string]pending
	buffer   []byte // of the last frame, for the next
	closed   bool
}

// openJournal opens the journal in dir, which is made if need be, and returns
// its records in order. bytesTorn is what had to be skipped.
func openJournal(dir string, limit int64) (j *journal, records []record, bytesTorn int64, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, nil, 0, fmt.Errorf("make journal directory: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, nil, 0, fmt.Errorf("list journal: %w", err)
	}
	j = &journal{dir: dir, max: limit, next: 1, running: map[string]pending{}}
	for _, entry := range entries {
		digits, isSegment := strings.CutSuffix(entry.Name(), segmentSuffix)
		number, err := strconv.ParseUint(digits, 10, 64)
		if !isSegment || err != nil {
			continue
		}
		j.segments = append(j.segments, segment{number: number})
		j.next = max(j.next, number+1)
	}
	slices.SortFunc(j.segments, func(a, b segment) int { return cmp.Compare(a.number, b.number) })
	for i := range j.segments {
		s := &j.segments[i]
		content, err := os.ReadFile(j.path(s.number))
		if err != nil {
			return nil, nil, 0, fmt.Errorf("read journal: %w", err)
		}
		s.size = int64(len(content))
		j.total += s.size
		for {
			r, rest, ok := cutRecord(content)
			if !ok {
				break
			}
			s.last = r.at
			j.followLocked(r, s.number)
			records, content = append(records, r), rest
		}
		bytesTorn += int64(len(content))
	}
	return j, records, bytesTorn, nil
}

func (j *journal) path(number uint64) string {
	return filepath.Join(j.dir, fmt.Sprintf("%012d%s", number, segmentSuffix))
}

// followLocked notes what the record, which stands in the segment, makes of
// its execution.
func (j *journal) followLocked(r record, segment uint64) {
	if r.event == eventStarted {
		j.running[r.id] = pending{r, segment}
		return
	}
	delete(j.running, r.id)
}

// add appends one record. A record of an end takes its execution off the
// running ones even when it cannot be written: after a crash it reads as
// interrupted then.
func (j *journal) add(r record) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if r.event == eventFinished {
		delete(j.running, r.id)
	}
	if j.closed {
		return fmt.Errorf("write journal: %w", os.ErrClosed)
	}
	frame := r.appendTo(j.buffer[:0])
	// One long result must not hold its memory for ever.
	if j.buffer = frame; cap(frame) > 256<<10 {
		j.buffer = nil
	}
	if err := j.makeRoomLocked(int64(len(frame))); err != nil {
		return err
	}
	if err := j.writeLocked(frame, r.at); err != nil {
		return err
	}
	j.followLocked(r, j.segments[len(j.segments)-1].number)
	return nil
}

// makeRoomLocked begins a new segment when the last is full, and gives up the
// oldest ones until n more bytes keep the journal within its bound.
func (j *journal) makeRoomLocked(n int64) error {
	if n > j.max {
		return fmt.Errorf("write journal: a record of %d bytes is above the bound of %d", n, j.max)
	}
	if j.file != nil && j.segments[len(j.segments)-1].size+n > j.max/segmentsPerJournal {
		j.leaveSegmentLocked()
	}
	if j.file == nil {
		file, err := os.OpenFile(j.path(j.next), os.O_WRONLY|os.O_APPEND|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return fmt.Errorf("make journal segment: %w", err)
		}
		j.file = file
		j.segments = append(j.segments, segment{number: j.next})
		j.next++
	}
	for j.total+n > j.max && len(j.segments) > 1 {
		if err := j.dropOldestLocked(); err != nil {
			return err
		}
	}
	return nil
}

// writeLocked appends the frame by one write.
func (j *journal) writeLocked(frame []byte, at time.Time) error {
	s := &j.segments[len(j.segments)-1]
	_, err := j.file.Write(frame)
	if err == nil {
		s.size += int64(len(frame))
		s.last = at
		j.total += int64(len(frame))
		return nil
	}
	if j.file.Truncate(s.size) != nil {
		j.leaveSegmentLocked()
	}
	return fmt.Errorf("write journal: %w", err)
}

// leaveSegmentLocked makes the next record begin a new segment. Closing
// cannot lose anything: each record was given to the kernel when written.
func (j *journal) leaveSegmentLocked() {
	_ = j.file.Close()
	j.file = nil
}

// dropOldestLocked removes the oldest segment, which is not the one being
// written, once nothing that still runs depends on it.
func (j *journal) dropOldestLocked() error {
	oldest := j.segments[0]
	for id, p := range j.running {
		if p.segment != oldest.number {
			continue
		}
		if err := j.writeLocked(p.appendTo(nil), p.at); err != nil {
			return err
		}
		p.segment = j.segments[len(j.segments)-1].number
		j.running[id] = p
	}
	if err := os.Remove(j.path(oldest.number)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove journal segment: %w", err)
	}
	j.segments = slices.Delete(j.segments, 0, 1)
	j.total -= oldest.size
	return nil
}

// expire removes the oldest segments that end before the cutoff.
func (j *journal) expire(cutoff time.Time) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	for !j.closed && j.file != nil && len(j.segments) > 1 && j.segments[0].last.Before(cutoff) {
		if err := j.dropOldestLocked(); err != nil {
			return err
		}
	}
	return nil
}

// close ends the journal; later records are refused.
func (j *journal) close() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.closed = true
	if j.file != nil {
		j.leaveSegmentLocked()
	}
}
