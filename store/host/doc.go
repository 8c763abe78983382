// Package host is the tier in host memory: slabs outside the Go heap, cut into slots of one size.
//
//	          Driver
//	            |  table: handle -> slab, read without a lock
//	+-----------+-----------+---------------------+
//	slab 1      slab 2      slab 3                blank mapping
//	class A     class A     class B               of no class, populated, cut when a class needs a slab
//	[##.#....]  [########]  [#         ]
//	 slots       full        a large extent has a slab of its own
//
// A class is a size rounded up to 4 KiB, and a namespace epoch where that has slabs of its own. The first slab of a
// class is 2 MiB, later ones double to 64 MiB, or to a 64th of a smaller tier; a slab is a whole number of slots, at
// least one. On Linux a slab is a sealed memfd in huge pages where they can be had. A goroutine makes memory resident
// ahead of its use; nothing waits for it. Fresh memory may be kept ready for the slabs of namespaces (Options.ReadyBytes).
//
// The bound holds at every moment for all that is held: slabs, blank memory, 16 bytes a slot, the fixed parts, and
// the kernel's page tables. Memory that a mixed class gives up stays, blank, for the next; that of a namespace with
// slabs of its own is punched out, unmapped and closed, so that nobody else's bytes ever come into it: clients of the
// same host may have it mapped (Export). A tier that was full once keeps its memory until Close. Where less than
// 256 KiB or one slot is left, that rest stays unused.
//
// What is lost, as part of the payload, for the pages that the design names. Rounding is to 4 KiB; bookkeeping is 16
// bytes a slot and 8 bytes a 4 KiB page of page tables. Header is what the extent carries in the same region.
//
//	extent                                 payload    header    region  rounding  bookkeeping
//	SmolLM2-135M, 16 tokens                 368640       592    372736     0.95%        0.20%
//	SmolLM2-135M, 64 tokens                1474560       736   1478656     0.23%        0.20%
//	SmolLM2-135M, 256 tokens               5898240      1264   5902336     0.05%        0.20%
//	Llama-3-8B, 16 tokens                  2097152       800   2101248     0.16%        0.20%
//	Llama-3-8B, 64 tokens                  8388608      1568   8392704     0.03%        0.20%
//	Llama-3-8B, 256 tokens                33554432      4640  33562624     0.01%        0.20%
//	Llama-3-8B, a TP8 rank, 16 tokens       262144       576    266240     1.34%        0.20%
//	Llama-3-8B, a TP8 rank, 64 tokens      1048576       672   1052672     0.33%        0.20%
//	Llama-3-8B, a TP8 rank, 256 tokens     4194304      1056   4198400     0.07%        0.20%
//	Llama-3-70B, 16 tokens                 5242880      1184   5246976     0.06%        0.20%
//	Llama-3-70B, 64 tokens                20971520      3104  20975616     0.00%        0.20%
//	Llama-3-70B, 256 tokens               83886080     10784  83898368     0.00%        0.20%
//	Llama-3-70B, a TP8 rank, 16 tokens      655360       624    659456     0.53%        0.20%
//	Llama-3-70B, a TP8 rank, 64 tokens     2621440       864   2625536     0.12%        0.20%
//	Llama-3-70B, a TP8 rank, 256 tokens   10485760      1824  10489856     0.02%        0.20%
//	DeepSeek-V3 (MLA), 16 tokens           1124352       712   1126400     0.12%        0.20%
//	DeepSeek-V3 (MLA), 64 tokens           4497408      1520   4501504     0.06%        0.20%
//	DeepSeek-V3 (MLA), 256 tokens         17989632      2984  17993728     0.01%        0.20%
//
// To that come the free slots of the newest slab of each class, and, for a slab that was cut from a blank mapping of
// another class, at most a 16th of it.
package host
