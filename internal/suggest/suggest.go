// Package suggest finds the known name that a mistyped one was probably meant to be. It imports nothing of ours.
package suggest

// maxLen bounds the work for one word; longer input has no suggestion.
const maxLen = 64

// Nearest answers the known name closest to word by edits, if it is close enough to be a slip: at most a third of
// the word's letters and one more. Ties go to the first.
func Nearest(word string, known []string) (string, bool) {
	if word == "" || len(word) > maxLen {
		return "", false
	}
	best, bestEdits := "", len(word)/3+2
	for _, k := range known {
		if len(k) > maxLen {
			continue
		}
		if d := edits(word, k); d < bestEdits && d < len(word) {
			best, bestEdits = k, d
		}
	}
	return best, best != ""
}

// edits is the number of single-byte insertions, deletions, replacements and swaps of neighbours between a and b.
func edits(a, b string) int {
	var rows [3][maxLen + 1]int
	before, last, next := &rows[0], &rows[1], &rows[2]
	for j := range len(b) + 1 {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		next[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			next[j] = min(last[j]+1, next[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				next[j] = min(next[j], before[j-2]+1)
			}
		}
		before, last, next = last, next, before
	}
	return last[len(b)]
}
