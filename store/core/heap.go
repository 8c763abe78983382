package core

// heaped is a binary heap in an array: the first is the least, and no two are equal.
type heaped interface {
	len() int
	less(i, j int) bool
	swap(i, j int)
}

// heapFix moves what is at i, which changed or is new, to where it belongs.
func heapFix[H heaped](h H, i int) {
	for i > 0 && h.less(i, (i-1)/2) {
		h.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
	for {
		child := 2*i + 1
		if child+1 < h.len() && h.less(child+1, child) {
			child++
		}
		if child >= h.len() || !h.less(child, i) {
			return
		}
		h.swap(i, child)
		i = child
	}
}
