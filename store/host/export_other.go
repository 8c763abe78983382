//go:build !linux

package host

func (heapMemory) share(*mapping, uint64, int64, int64) (*export, error) { return nil, ErrNotShared }

func (*export) duplicate() (Slab, error) { return Slab{}, ErrNotShared }
