package rpc

import (
	"encoding/binary"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
)

// FetchHead is a FetchResponse without its chunk. Header and CutSums are valid until the callbacks of Received
// return; Trailer is the caller's.
type FetchHead struct {
	Page    uint32
	Header  []byte // nil: none
	Extent  uint32
	Offset  uint64
	CutSums []byte
	Trailer *quirev1.PageStatus // nil: none
}

func (h *FetchHead) reset() { *h = FetchHead{} }

func (h *FetchHead) number(field protowire.Number, v uint64) {
	switch field {
	case 1:
		h.Page = uint32(v)
	case 3:
		h.Extent = uint32(v)
	case 4:
		h.Offset = v
	}
}

func (h *FetchHead) bytes(field protowire.Number, b []byte) error {
	switch field {
	case 2:
		h.Header = b
	case 5:
		h.CutSums = b
	case 6:
		if h.Trailer == nil {
			h.Trailer = new(quirev1.PageStatus)
		}
		return merge(h.Trailer, b)
	}
	return nil
}

// Append encodes h in front of a chunk: the Head of a Chunk. Equal to what the generated code writes.
func (h *FetchHead) Append(b []byte) ([]byte, error) {
	b = appendNumber(b, 1, uint64(h.Page))
	b = appendBytes(b, 2, h.Header)
	b = appendNumber(b, 3, uint64(h.Extent))
	b = appendNumber(b, 4, h.Offset)
	b = appendBytes(b, 5, h.CutSums)
	return appendMessage(b, 6, h.Trailer, h.Trailer != nil)
}

// WriteHead is a WritePagesRequest without its chunk. Token and Namespace are the caller's.
type WriteHead struct {
	Token     *quirev1.FencingToken // first message only
	Namespace *quirev1.NamespaceRef // first message only
	Page      uint32
	Grant     uint32
	Offset    uint64
}

func (h *WriteHead) reset() { *h = WriteHead{} }

func (h *WriteHead) number(field protowire.Number, v uint64) {
	switch field {
	case 3:
		h.Page = uint32(v)
	case 4:
		h.Grant = uint32(v)
	case 5:
		h.Offset = v
	}
}

func (h *WriteHead) bytes(field protowire.Number, b []byte) error {
	switch field {
	case 1:
		if h.Token == nil {
			h.Token = new(quirev1.FencingToken)
		}
		return merge(h.Token, b)
	case 2:
		if h.Namespace == nil {
			h.Namespace = new(quirev1.NamespaceRef)
		}
		return merge(h.Namespace, b)
	}
	return nil
}

// Append encodes h in front of a chunk: the Head of a Chunk. Equal to what the generated code writes.
func (h *WriteHead) Append(b []byte) ([]byte, error) {
	b, err := appendMessage(b, 1, h.Token, h.Token != nil)
	if err != nil {
		return b, err
	}
	if b, err = appendMessage(b, 2, h.Namespace, h.Namespace != nil); err != nil {
		return b, err
	}
	b = appendNumber(b, 3, uint64(h.Page))
	b = appendNumber(b, 4, uint64(h.Grant))
	return appendNumber(b, 5, h.Offset), nil
}

// merge is what protobuf says of a message field that comes twice.
func merge(m proto.Message, b []byte) error {
	if err := (proto.UnmarshalOptions{Merge: true}).Unmarshal(b, m); err != nil {
		return fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	return nil
}

func appendNumber(b []byte, field protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	return binary.AppendUvarint(protowire.AppendTag(b, field, protowire.VarintType), v)
}

func appendBytes(b []byte, field protowire.Number, v []byte) []byte {
	if len(v) == 0 {
		return b
	}
	return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), v)
}

func appendMessage(b []byte, field protowire.Number, m proto.Message, set bool) ([]byte, error) {
	if !set {
		return b, nil
	}
	b = binary.AppendUvarint(protowire.AppendTag(b, field, protowire.BytesType), uint64(proto.Size(m)))
	return proto.MarshalOptions{}.MarshalAppend(b, m)
}
