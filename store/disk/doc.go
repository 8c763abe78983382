// Package disk is the tier that outlives its process: a log of segments that is the truth, a small journal of what ended,
// and an index that can be made anew from both. docs/formats/segments.md has the bytes.
//
//	Submit, Bury, Free, Retire, Barrier              Alloc, Lookup, Usage, Compact
//	          | queue                                     | tables: 16 bytes a region
//	          v                                           v
//	writer, one goroutine:  define -> write -> sync -> index -> Done -> remove -> bury -> sync -> index -> barriers
//	          |                 |                        |
//	....................................................................................
//	IDENTITY LOCK OWNER     *.jrn journal           *.seg segments          index/
//	                        graves, retirements,    regions, as they are    where the live
//	                        lineages                in memory               regions are
//
// A region is one record: the page.HeadBytes at its beginning are the tier's frame, so a payload is written straight from
// the caller's memory and read straight into it. All writes that have been queued meanwhile are one batch with one sync,
// past the page cache where the file system allows it: durable batches of 16 MiB run at 0.8 of plain writes of the same disk
// (BenchmarkAppend), buffered ones at 0.55, and what was just written is in memory anyway. Reads go through the page cache,
// on a few goroutines.
//
// Space returns by whole segments: when the last region of one ended, or when Compact emptied it. What is moved goes to
// segments of its own, since what has lived long lives on. One segment's space is kept for that, so cleaning can always
// go on. Regions over a quarter of a segment have a segment of their own; the largest is a quarter of the capacity, or
// 4 GiB. The bound holds for all files at every moment: segments count at full size from the moment that they are planned
// until their file is gone, and what journal and index may come to take is kept free for them.
//
// What goes wrong with the device:
//
//	a sync, the index              no writes until the next start: what is durable is not known. Reads go on
//	a write, a new file            no writes until a probe succeeds; the segment takes no more
//	a removal                      the file counts until the probe removes it
//	a read                         that read
//	no answer to a write, 10 s     what waits is refused, and what comes, until there is one
//	no answer to any read, 10 s    likewise
//
// Opening reads the journal, the segments that the index does not know all of, and of those that a crash came upon what
// may not have been durable. Payloads are not verified otherwise: each read is, by its reader.
package disk
