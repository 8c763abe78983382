package disk

import (
	"errors"
	"fmt"
	"maps"
	"slices"
)

// journal is what ends regions and what they share: graves, retirements and lineages, in small files of their own. So a
// region can be buried when the tier is full, and a segment goes without being read again.
//
//	0          block       half               half + block        end
//	+----------+-----------+------------------+-------------------+
//	| label    | records   | unused block     | the same records  |
//	+----------+-----------+------------------+-------------------+
//
// Each record is written twice, far apart: a damaged one would bring back what was deleted. When the files grow to
// more than twice of what still matters, that is written to new ones and they go. All of it is the writer's.
type journal struct {
	d          *Driver
	files      []*journalFile // oldest first; the last takes records
	ids        map[string]uint32
	texts      map[uint32]string
	textual    int64 // bytes of all texts
	lastID     uint32
	buf        []byte
	compacting bool
	damaged    bool // a record was found damaged: write it all anew
}

type journalFile struct {
	number uint64
	size   int64
	end    int64      // of the first half's records
	file   *writeFile // nil: of an earlier life, or broken
}

func (f *journalFile) half() int64 { return f.size / 2 }

var errLineages = errors.New("disk tier: too many lineages")

func newJournal(d *Driver) *journal {
	return &journal{d: d, ids: map[string]uint32{}, texts: map[uint32]string{}, buf: aligned(2 * blockBytes)}
}

// adopt takes in a file of an earlier life.
func (j *journal) adopt(f found) {
	j.files = append(j.files, &journalFile{number: f.number, size: f.size})
}

// define is told of a lineage that a journal file defines.
func (j *journal) define(id uint32, text string) {
	if _, ok := j.texts[id]; !ok {
		j.textual += int64(len(text))
	}
	j.ids[text], j.texts[id] = id, text
	j.lastID = max(j.lastID, id)
}

// id is the lineage's, which is defined if it is new.
func (j *journal) id(text string) (uint32, error) {
	if text == "" {
		return 0, nil
	}
	if id, ok := j.ids[text]; ok {
		return id, nil
	}
	if err := j.admit(int64(len(text))); err != nil {
		return 0, err
	}
	id := j.lastID + 1
	if err := j.append(kindDefine, appendDefinition(nil, id, text)); err != nil {
		return 0, err
	}
	j.define(id, text)
	return id, nil
}

// admit makes room for the text of a lineage among those in use.
func (j *journal) admit(bytes int64) error {
	most := j.d.sizes.journal / 8
	if bytes > MaxLineageBytes || bytes > most {
		return errLineages
	}
	if j.textual+bytes <= most {
		return nil
	}
	c := j.content()
	var used int64
	for _, id := range c.lineages {
		used += int64(len(j.texts[id]))
	}
	if used+bytes > most/2 { // else few are forgotten each time
		return errLineages
	}
	return j.rewrite(c)
}

// append writes one record to both halves; flush makes it durable.
func (j *journal) append(k kind, body []byte) error {
	n := int64(frameBytes+len(body)+blockBytes-1) &^ (blockBytes - 1)
	f, err := j.room(n)
	if err != nil {
		return err
	}
	j.d.step()
	b := j.buf[:n]
	clear(b)
	copy(b[frameBytes:], body)
	r := frame{kind: k, number: f.number, seq: j.d.nextSeq(), synced: j.d.synced, block: uint32(f.end / blockBytes), bodyBytes: uint32(len(body)), bytes: uint64(frameBytes + len(body))}
	r.seal(b, j.d.dir.secret)
	for _, at := range [2]int64{f.end, f.half() + f.end} {
		if err := f.file.writeParts([][]byte{b}, at); err != nil {
			return j.abandon(f, err)
		}
	}
	f.end += n
	j.d.stats.journalBytes.Add(uint64(2 * n))
	return nil
}

// room is the file that has room for a record of n bytes.
func (j *journal) room(n int64) (*journalFile, error) {
	if f := j.last(); f != nil && f.file != nil && f.end+n <= f.half() {
		return f, nil
	}
	if c := j.content(); !j.compacting && (j.damaged || j.bytes() >= 2*c.bytes+3*j.d.sizes.journal) {
		if err := j.rewrite(c); err != nil {
			return nil, err
		}
		return j.room(n)
	}
	return j.grow()
}

func (j *journal) last() *journalFile {
	if len(j.files) == 0 {
		return nil
	}
	return j.files[len(j.files)-1]
}

// grow adds a file. The full one before it is flushed and closed.
func (j *journal) grow() (*journalFile, error) {
	if f := j.last(); f != nil && f.file != nil {
		if err := j.d.flushFile(f.file); err != nil {
			return nil, err
		}
		if err := f.file.Close(); err != nil {
			j.d.o.Logger.Warn("close_journal", "error", err)
		}
		f.file = nil
	}
	f := &journalFile{number: j.d.nextSeq(), size: j.d.sizes.journal, end: blockBytes}
	file, err := j.d.makeFile(journalName(f.number), label{kind: fileJournal, number: f.number, bytes: f.size})
	if err == nil {
		if err = j.d.syncDir(); err != nil {
			return nil, j.d.fail(errors.Join(fmt.Errorf("sync directory: %w", err), file.Close()))
		}
	}
	if err != nil {
		err = j.d.trouble(fmt.Errorf("make %s: %w", journalName(f.number), err))
		return nil, errors.Join(err, j.d.dir.remove(journalName(f.number)))
	}
	f.file = file
	j.files = append(j.files, f)
	j.d.journalHolds(j.bytes())
	return f, nil
}

// abandon ends the use of a file that could not be written, once what was appended before is durable: others rely on it.
func (j *journal) abandon(f *journalFile, err error) error {
	if err := j.d.flushFile(f.file); err != nil {
		return err
	}
	err = j.d.trouble(fmt.Errorf("write %s: %w", journalName(f.number), err))
	err = errors.Join(err, f.file.Close())
	f.file = nil
	return err
}

// flush makes what was appended durable.
func (j *journal) flush() error {
	if f := j.last(); f != nil && f.file != nil {
		return j.d.flushFile(f.file)
	}
	return nil
}

func (j *journal) bytes() (n int64) {
	for _, f := range j.files {
		n += f.size
	}
	return n
}

// rewrite writes what still matters to new files and removes the old ones.
func (j *journal) rewrite(content content) error {
	j.compacting = true
	defer func() { j.compacting = false }()
	old := len(j.files)
	if _, err := j.grow(); err != nil {
		return err
	}
	if err := j.write(content); err != nil {
		return err
	}
	if err := j.flush(); err != nil {
		return err
	}
	kept := j.files[old:]
	for i, f := range j.files[:old] {
		if err := j.d.dir.remove(journalName(f.number)); err != nil {
			j.files = append(j.files[i:old:old], kept...)
			return j.d.trouble(fmt.Errorf("remove %s: %w", journalName(f.number), err))
		}
	}
	j.files = kept
	j.d.journalHolds(j.bytes())
	if err := j.d.syncDir(); err != nil {
		return j.d.fail(fmt.Errorf("sync directory: %w", err))
	}
	j.damaged = false
	for text, id := range j.ids {
		if !slices.Contains(content.lineages, id) {
			delete(j.ids, text)
			delete(j.texts, id)
			j.textual -= int64(len(text))
		}
	}
	return nil
}

// content is what of the journal still matters.
type content struct {
	graves   []grave
	retired  []retirement
	lineages []uint32
	bytes    int64 // about what it takes, both halves
}

func (j *journal) content() (c content) {
	d := j.d
	used := map[uint32]bool{}
	d.mu.Lock()
	oldest := d.oldestSeq()
	maps.DeleteFunc(d.retired, func(_ epochID, below uint64) bool { return below <= oldest })
	for e, below := range d.retired {
		c.retired = append(c.retired, retirement{e, below})
	}
	for _, s := range d.byNumber {
		for _, block := range s.graves {
			c.graves = append(c.graves, grave{s.number, block})
		}
		for _, id := range s.lineages {
			used[id] = true
		}
	}
	d.mu.Unlock()
	slices.SortFunc(c.graves, grave.compare)
	c.lineages = slices.Sorted(maps.Keys(used))
	c.bytes = int64(len(c.graves)*graveBytes+len(c.retired)*retireBytes) + j.textual
	c.bytes = 2 * (c.bytes + 3*recordBytes)
	return c
}

func (j *journal) write(c content) error {
	if err := appendAll(j, kindRetire, c.retired, func(b []byte, r retirement) []byte { return r.append(b) }); err != nil {
		return err
	}
	err := appendAll(j, kindDefine, c.lineages, func(b []byte, id uint32) []byte { return appendDefinition(b, id, j.texts[id]) })
	if err != nil {
		return err
	}
	return appendAll(j, kindBury, c.graves, func(b []byte, g grave) []byte { return g.append(b) })
}

// appendAll packs entries into records.
func appendAll[E any](j *journal, k kind, entries []E, appendEntry func([]byte, E) []byte) error {
	body := make([]byte, 0, 2*recordBody)
	for _, e := range entries {
		before := len(body)
		if body = appendEntry(body, e); len(body) <= recordBody || before == 0 {
			continue
		}
		if err := j.append(k, body[:before]); err != nil {
			return err
		}
		body = append(body[:0], body[before:]...)
	}
	if len(body) == 0 {
		return nil
	}
	return j.append(k, body)
}

// close closes the file being written.
func (j *journal) close() error {
	if f := j.last(); f != nil && f.file != nil {
		return f.file.Close()
	}
	return nil
}
