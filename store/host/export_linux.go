package host

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/quire-kv/quire/store/shm"
)

// readable is the mode of what is handed out: a descriptor that is open for reading cannot be reopened for writing
// through /proc by anybody but the node's own user.
const readable = 0o444

func (f *memfd) share(m *mapping, number uint64, slotBytes, slots int64) (*export, error) {
	file := m.file
	m.file = -1
	e := &export{number: number, data: -1, gens: -1}
	var err error
	e.data, err = reopen(file)
	if err = errors.Join(err, unix.Close(file)); err == nil {
		err = e.mapGenerations(generationBytes(slots))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("share a slab: %w", err), e.close())
	}
	e.Generations = shm.NewGenerations(e.memory, number, m.bytes, slotBytes, slots)
	return e, nil
}

// reopen is a read-only descriptor of the file that fd has open.
func reopen(fd int) (int, error) {
	if err := unix.Fchmod(fd, readable); err != nil {
		return -1, fmt.Errorf("make memfd read-only: %w", err)
	}
	ro, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("reopen memfd: %w", err)
	}
	return ro, nil
}

func (e *export) mapGenerations(bytes int64) error {
	fd, err := unix.MemfdCreate("quire-generations", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return fmt.Errorf("create memfd: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, bytes); err != nil {
		return fmt.Errorf("size memfd to %d bytes: %w", bytes, err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		return fmt.Errorf("seal memfd: %w", err)
	}
	e.memory, err = unix.Mmap(fd, 0, int(bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return fmt.Errorf("map generations: %w", err)
	}
	e.gens, err = reopen(fd)
	return err
}

// end tells clients that the slab is gone and takes its memory from under them: a hole reads as zeros.
func (e *export) end(m *mapping) error {
	e.End()
	err := unix.Madvise(m.mem, unix.MADV_REMOVE)
	if err != nil {
		err = fmt.Errorf("punch out %d bytes: %w", m.bytes, err)
	}
	return errors.Join(err, e.close())
}

func (e *export) close() error {
	var errs []error
	if e.memory != nil {
		errs = append(errs, unix.Munmap(e.memory))
		e.memory = nil
	}
	for _, fd := range []*int{&e.data, &e.gens} {
		if *fd >= 0 {
			errs = append(errs, unix.Close(*fd))
			*fd = -1
		}
	}
	return errors.Join(errs...)
}

func (e *export) duplicate() (Slab, error) {
	data, err := unix.FcntlInt(uintptr(e.data), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return Slab{}, fmt.Errorf("duplicate descriptor: %w", err)
	}
	gens, err := unix.FcntlInt(uintptr(e.gens), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return Slab{}, errors.Join(fmt.Errorf("duplicate descriptor: %w", err), unix.Close(data))
	}
	return Slab{Number: e.number, Data: data, Generations: gens}, nil
}
