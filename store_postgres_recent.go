package idempotency

import (
	"encoding/binary"
	"sync/atomic"
)

// recentKeys knows, more or less, which keys have a record because this process met them
// a short while ago: where a retry comes soonest, it finds its record with one SELECT.
// Nothing depends on it. If it is wrong either way, Reserve takes one statement more.
//
// It is a table of digests, of 256 kB, in which a key drives out the one that had its place.
type recentKeys [1 << 16]atomic.Uint32

func (k *recentKeys) add(id [16]byte)           { k.place(id).Store(tag(id)) }
func (k *recentKeys) contains(id [16]byte) bool { return k.place(id).Load() == tag(id) }
func (k *recentKeys) remove(id [16]byte)        { k.place(id).CompareAndSwap(tag(id), 0) }

func (k *recentKeys) place(id [16]byte) *atomic.Uint32 { return &k[binary.BigEndian.Uint16(id[:])] }

// tag is a part of the digest that the place does not tell, and not 0, which is nobody's.
func tag(id [16]byte) uint32 { return binary.BigEndian.Uint32(id[2:]) | 1 }
