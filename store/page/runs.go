package page

// Runs says which bytes of one head-major buffer go where in another: N runs of Bytes, the k-th from
// Src+k*SrcStride to Dst+k*DstStride. Heads that lie whole on both sides are one run.
//
//	extent h[0,4) l[0,4)        take h[1,3) l[1,3)         reader's h[1,3) l[1,3)
//	|....|.xx.|.yy.|....|  -->  N=2 runs of 2 cells   -->  |xx|yy|
type Runs struct {
	Src, Dst             int
	Bytes                int
	SrcStride, DstStride int
	N                    int
}

// RunsBetween are the runs that copy the cells of take from an extent of view src into a buffer of view dst. Cells of
// take outside of either are left out; N is 0 when nothing is left.
func RunsBetween(src, dst, take View, cellBytes uint32) Runs {
	take = take.Intersect(src).Intersect(dst)
	if take.Empty() {
		return Runs{}
	}
	cell := int(cellBytes)
	r := Runs{
		Src: src.offset(take, cell), Dst: dst.offset(take, cell),
		Bytes:     int(take.L1-take.L0) * cell,
		SrcStride: int(src.L1-src.L0) * cell, DstStride: int(dst.L1-dst.L0) * cell,
		N: int(take.H1 - take.H0),
	}
	if r.Bytes == r.SrcStride && r.Bytes == r.DstStride || r.N == 1 {
		r.Bytes *= r.N
		r.N, r.SrcStride, r.DstStride = 1, r.Bytes, r.Bytes
	}
	return r
}

// RunsOf are the runs of view inside of an extent of view extent; Dst counts through them without holes.
func RunsOf(extent, view View, cellBytes uint32) Runs {
	return RunsBetween(extent, view.Intersect(extent), view, cellBytes)
}

// offset is where the first cell of w lies in a buffer of view v.
func (v View) offset(w View, cell int) int {
	return (int(w.H0-v.H0)*int(v.L1-v.L0) + int(w.L0-v.L0)) * cell
}

// Run is the k-th run.
func (r Runs) Run(k int) (src, dst, bytes int) {
	return r.Src + k*r.SrcStride, r.Dst + k*r.DstStride, r.Bytes
}

// Total is the number of bytes of all runs.
func (r Runs) Total() int { return r.N * r.Bytes }

// Locate says where the byte at srcOffset of the source goes, and how many bytes from there on go to one place; ok
// is false if it is in no run.
func (r Runs) Locate(srcOffset int) (dst, bytes int, ok bool) {
	if srcOffset < r.Src || r.N == 0 {
		return 0, 0, false
	}
	k, in := (srcOffset-r.Src)/r.SrcStride, (srcOffset-r.Src)%r.SrcStride
	if k >= r.N || in >= r.Bytes {
		return 0, 0, false
	}
	return r.Dst + k*r.DstStride + in, r.Bytes - in, true
}
