// Package shm is what both ends of a connection on one host know of the memory that they share: how a reader notices
// that bytes are no longer those that it was told of, and how a descriptor is mapped so that nothing its owner does can
// end the process that mapped it. docs/formats/shm.md is the contract for other languages.
//
//	        node                                       client
//	slab      [slot 0][slot 1][slot 2]...    ──────>   mapped, read only
//	generations [ slab | 0 | 1 | 2 ... ]     ──────>   mapped, read only
//	staging   mapped, read only              <──────   [ what the client fills ]
//
// The node raises a slot's generation when what lies there is freed, before anything else is written there, and the
// slab's when pages of it may not be used any more although their bytes are still there. A name of bytes carries both.
// Who finds both unchanged after its last byte has read what the name stands for.
package shm
