package page

// MaxPieceBytes bounds a piece: small enough to be hashed while it is in the near cache, large enough that sums are
// a ten-thousandth of the payload.
const MaxPieceBytes = 64 << 10

// Pieces is the geometry of the checksums of one extent: whole cells (kv head, layer) of one head, up to 64 KiB,
// never across heads; a cell larger than that is cut every 64 KiB, and then a piece never leaves its cell. Either way:
// pieces are PieceBytes long, counted afresh in each unit, and the last of a unit may be shorter.
//
//	small cells, unit = head              large cells, unit = cell
//	|<------ head 0 ------>|<- head 1     |<---- cell 0 ---->|<---- cell 1 ...
//	| c c c c | c c c c | c| c c c c      |  64 KiB | 64 KiB |r| 64 KiB | ...
//	|  piece  |  piece  | p|  piece       |  piece  | piece  |p|  piece
type Pieces struct {
	PerHead    int // pieces in one head's run of layers
	PieceBytes int // of all but the last of a unit
	PerCell    int // 1 unless a cell is larger than MaxPieceBytes
	UnitBytes  int // a head's run of layers, or one cell when PerCell > 1
	HeadBytes  int // a head's run of layers
}

// PiecesOf computes the pieces of an extent of layers cells of cellBytes per head. Both at least 1; otherwise the
// result has no piece.
func PiecesOf(layers int, cellBytes int) Pieces {
	if layers < 1 || cellBytes < 1 {
		return Pieces{PieceBytes: 1, PerCell: 1, UnitBytes: 1}
	}
	head := layers * cellBytes
	if cellBytes > MaxPieceBytes {
		per := (cellBytes + MaxPieceBytes - 1) / MaxPieceBytes
		return Pieces{PerHead: per * layers, PieceBytes: MaxPieceBytes, PerCell: per, UnitBytes: cellBytes, HeadBytes: head}
	}
	cells := min(MaxPieceBytes/cellBytes, layers)
	return Pieces{PerHead: (layers + cells - 1) / cells, PieceBytes: cells * cellBytes, PerCell: 1, UnitBytes: head, HeadBytes: head}
}

// PieceCount is the number of pieces, and so of sums, of an extent of view v.
func PieceCount(v View, cellBytes uint32) int {
	if v.Empty() {
		return 0
	}
	return PiecesOf(int(v.L1-v.L0), int(cellBytes)).Count(int(v.H1 - v.H0))
}

// Count is the number of pieces of heads heads.
func (p Pieces) Count(heads int) int { return heads * p.PerHead }

// perUnit is the number of pieces in one unit.
func (p Pieces) perUnit() int { return (p.UnitBytes + p.PieceBytes - 1) / p.PieceBytes }

// Span is where piece i lies in the payload. i is not checked against the number of heads.
func (p Pieces) Span(i int) (offset, bytes int) {
	unit, k := i/p.perUnit(), i%p.perUnit()
	return unit*p.UnitBytes + k*p.PieceBytes, min(p.PieceBytes, p.UnitBytes-k*p.PieceBytes)
}

// At is the piece that holds the byte at offset of the payload.
func (p Pieces) At(offset int) int {
	return offset/p.UnitBytes*p.perUnit() + offset%p.UnitBytes/p.PieceBytes
}

// Touched says which pieces the byte run [offset, offset+bytes) of a payload touches: [first, end), and whether it
// holds the first and the last of them only in part. With one piece touched, both tell of it. An empty run touches none.
func (p Pieces) Touched(offset, bytes int) (first, end int, cutsFirst, cutsLast bool) {
	if bytes <= 0 {
		first = p.At(offset)
		return first, first, false, false
	}
	first, last := p.At(offset), p.At(offset+bytes-1)
	firstAt, _ := p.Span(first)
	lastAt, lastBytes := p.Span(last)
	cutsFirst, cutsLast = firstAt < offset, lastAt+lastBytes > offset+bytes
	if first == last {
		cutsFirst = cutsFirst || cutsLast
		cutsLast = cutsFirst
	}
	return first, last + 1, cutsFirst, cutsLast
}
