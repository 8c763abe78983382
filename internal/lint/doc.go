// Package lint holds the habits of this module as tests: which package may import which and why, what a package must
// say of itself, where time and state may live, and that documents name only what exists. It has no code of its own.
package lint
