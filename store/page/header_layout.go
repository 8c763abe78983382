package page

// Extent header, version 1, little-endian. Fixed part, then provenance, then one 8-byte sum per piece, then the tail.
// docs/formats/extent-header.md is this drawing with the meaning of each field; a test holds the two together.
//
//	  0  4 magic "QEXT"      4  2 version            6  2 flags (durable, strict, parent unknown)
//	  8  4 header bytes     12  4 piece count       16  8 payload bytes
//	 24 32 namespace        56  8 epoch             64 32 scope          96 32 group
//	128  1 hash bytes      129  1 parent bytes     130  2 provenance bytes   132 4 depth
//	136 64 hash            200 64 parent hash
//	264 16 writer          280  8 sequence         288 16 payload digest (xxh3-128 of the sums)
//	304  8 view h0 h1 l0 l1            312 12 token start, stride, run   324  4 shard r of n
//	328  4 tokens          332  4 cell bytes       336  2 page heads     338  2 page layers
//	340  2 packing grade   342  2 components       344 32 packing id
//	376  8 created (unix s)384  8 declared cost FLOPs                    392  4 expiry (unix s)
//	396  4 reserved, zero  400  . provenance, canonical, at most 1 KiB
//	  .  8 x pieces: xxh3-64 sums
//	 end-16 16 xxh3-128 of all before it
const (
	HeaderMagic      = "QEXT"
	HeaderVersion    = 1
	headerFixedBytes = 400
	headerTailBytes  = 16
	headerFrameBytes = 12 // magic to header bytes: what HeaderBytes needs

	// MaxProvenance bounds a canonical provenance: a dozen short factors.
	MaxProvenance = 1 << 10
	// MaxPieces bounds the sums of one extent: 1 GiB of full pieces, and more than any page in use needs.
	MaxPieces = 1 << 14
	// MaxHeaderBytes bounds an encoded header; nothing is read or allocated for a longer one.
	MaxHeaderBytes = headerFixedBytes + MaxProvenance + 8*MaxPieces + headerTailBytes
)

// The flags of a header; any other bit is ErrUnknownFlags.
const (
	flagDurable = 1 << iota
	flagStrict
	flagParentUnknown
	knownFlags = flagDurable | flagStrict | flagParentUnknown
)

// Offsets of the fixed part. Each field ends where the next one begins.
const (
	offMagic           = 0
	offVersion         = 4
	offFlags           = 6
	offHeaderBytes     = 8
	offPieceCount      = 12
	offPayloadBytes    = 16
	offNamespace       = 24
	offEpoch           = 56
	offScope           = 64
	offGroup           = 96
	offHashBytes       = 128
	offParentBytes     = 129
	offProvenanceBytes = 130
	offDepth           = 132
	offHash            = 136
	offParentHash      = 200
	offWriter          = 264
	offSequence        = 280
	offPayloadDigest   = 288
	offViewH0          = 304
	offViewH1          = 306
	offViewL0          = 308
	offViewL1          = 310
	offTokenStart      = 312
	offTokenStride     = 316
	offTokenRun        = 320
	offShard           = 324
	offShards          = 326
	offTokens          = 328
	offCellBytes       = 332
	offPageHeads       = 336
	offPageLayers      = 338
	offGrade           = 340
	offComponents      = 342
	offPackingID       = 344
	offCreated         = 376
	offDeclaredFLOPs   = 384
	offExpiry          = 392
	offReserved        = 396
)
