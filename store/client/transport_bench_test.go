package client_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/quire-kv/quire/namespace"
	"github.com/quire-kv/quire/store/client"
	"github.com/quire-kv/quire/store/client/clienttest"
	"github.com/quire-kv/quire/store/page"
)

// The transports against Go's copy of the same pages in the same run: a figure is the fraction of its bytes per
// second. CPU is of client and server, which are one process here.

const arenaBytes = 1 << 30 // of pages to choose from: more than caches hold

var shapes = []struct {
	name      string
	pageBytes int
	batch     int // pages of a call
	callers   int
}{
	{"1MiB_x16", 1 << 20, 16, 1},
	{"1MiB_x128", 1 << 20, 128, 1},
	{"1MiB_8_callers", 1 << 20, 1, 8},
	{"1MiB_one", 1 << 20, 1, 1},
	{"64KiB_x128", 64 << 10, 128, 1},
}

func BenchmarkTransportFetch(b *testing.B) {
	for _, t := range transports {
		for _, s := range shapes {
			b.Run(fmt.Sprintf("%s/%s", t, s.name), func(b *testing.B) {
				w := newBench(b, t, s.pageBytes, arenaBytes/s.pageBytes)
				w.publish(b, 128)
				measure(b, w, s.batch, s.callers, func(ctx context.Context, from int, dst [][]byte) error {
					rs, err := w.s.FetchInto(ctx, w.pages(from, s.batch), page.View{}, nil, dst, nil)
					if err == nil && client.GoodPrefix(rs) != s.batch {
						err = fmt.Errorf("%v", rs[client.GoodPrefix(rs)])
					}
					return err
				}, nil)
			})
		}
	}
}

func BenchmarkTransportPublish(b *testing.B) {
	for _, t := range transports {
		for _, s := range shapes {
			if s.callers > 1 || s.batch == 1 {
				continue
			}
			b.Run(fmt.Sprintf("%s/%s", t, s.name), func(b *testing.B) {
				w := newBench(b, t, s.pageBytes, 512<<20/s.pageBytes)
				measure(b, w, s.batch, s.callers, func(ctx context.Context, from int, dst [][]byte) error {
					r := w.pages(from, s.batch)
					items := make([]client.Item, s.batch)
					for i := range items {
						items[i] = client.Item{Bytes: w.arena[from+i], ParentUnknown: i == 0}
					}
					rs, err := w.s.Publish(ctx, r, page.View{}, nil, items, client.PublishOptions{})
					if err == nil && rs[0].Outcome != client.Committed {
						err = fmt.Errorf("%v", rs[0])
					}
					return err
				}, func(ctx context.Context, from int) error {
					_, err := w.s.Delete(ctx, w.pages(from, s.batch))
					return err
				})
			})
		}
	}
}

// BenchmarkTransportExists: 128 keys a call, half of them stored.
func BenchmarkTransportExists(b *testing.B) {
	for _, t := range transports {
		b.Run(string(t), func(b *testing.B) {
			w := newBench(b, t, 64<<10, 1024)
			w.publish(b, 64)
			for i := 0; b.Loop(); i++ {
				if _, err := w.s.Exists(b.Context(), w.pages(i%7*128, 128), 0); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(128*float64(b.N)/b.Elapsed().Seconds()/1e6, "Mkeys/s")
		})
	}
}

// bench is one session and pages for it.
type bench struct {
	s     *client.Session
	run   client.Run
	size  int
	arena [][]byte
}

func newBench(b *testing.B, t client.Transport, pageBytes, n int) *bench {
	nd := newNodeOf(b, 2<<30)
	nd.transport = t
	c := nd.dial(b, "acme", client.Options{})
	spec := clienttest.Spec(b, fmt.Sprint(pageBytes))
	spec.Groups[0].Layers = namespace.LayerRange(0, uint16(pageBytes/(8*4096)))
	spec.Groups[1].Layers = namespace.LayerRange(64, 67)
	w := &bench{size: pageBytes}
	var err error
	if w.s, err = c.Open(b.Context(), spec); err != nil {
		b.Fatal(err)
	}
	for _, g := range w.s.Namespace().GetGroups() {
		if g.GetKind() == "full" {
			w.run.Group = page.GroupID(g.GetId())
		}
	}
	all := make([]byte, n*pageBytes)
	for i := range all {
		all[i] = byte(i*7 + i>>13)
	}
	w.run.Hashes = clienttest.Hashes("bench", n)
	for i := range n {
		w.arena = append(w.arena, all[i*pageBytes:(i+1)*pageBytes])
	}
	return w
}

func (w *bench) pages(from, n int) client.Run { return w.s.First(w.s.Rest(w.run, from), n) }

func (w *bench) publish(b *testing.B, batch int) {
	for from := 0; from < len(w.arena); from += 2 * batch { // half of them, for Exists; the other half by the next call
		for _, at := range []int{from, from + batch} {
			if at > from && w.size == 64<<10 && len(w.arena) == 1024 {
				continue
			}
			items := make([]client.Item, batch)
			for i := range items {
				items[i] = client.Item{Bytes: w.arena[at+i], ParentUnknown: i == 0}
			}
			rs, err := w.s.Publish(b.Context(), w.pages(at, batch), page.View{}, nil, items, client.PublishOptions{})
			if err != nil || client.GoodPrefix(rs) != batch {
				b.Fatal(err, rs)
			}
		}
	}
}

// measure runs b.N rounds; each is 16 MiB or more of calls, the same bytes over bare sockets, and the same bytes copied,
// so that all of them see the same machine.
func measure(b *testing.B, w *bench, batch, callers int, call func(ctx context.Context, from int, dst [][]byte) error, undo func(ctx context.Context, from int) error) {
	dst := make([][][]byte, callers)
	for k := range dst {
		for range batch {
			d := make([]byte, w.size)
			copy(d, w.arena[0])
			dst[k] = append(dst[k], d)
		}
	}
	calls := max(callers, // of a round: below one pass over the arena, so that no page comes twice
		callers*((32<<20)/(batch*w.size*callers)))
	bare := newBare(b, w)
	var called, bared, copied spent
	at := 0
	next := func() int {
		at = (at + batch) % (len(w.arena) - batch + 1)
		return at
	}
	for b.Loop() {
		froms := make([]int, calls)
		for i := range froms {
			froms[i] = next()
		}
		called.add(func() {
			var wg sync.WaitGroup
			for k := range callers {
				wg.Go(func() {
					for i := k; i < calls; i += callers {
						if err := call(b.Context(), froms[i], dst[k]); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
		})
		for i := 0; undo != nil && i < calls; i++ {
			if err := undo(b.Context(), froms[i]); err != nil {
				b.Fatal(err)
			}
		}
		bared.add(func() {
			for i := range calls {
				bare.fetch(b, froms[i], dst[i%callers])
			}
		})
		copied.add(func() {
			for i := range calls {
				for k, d := range dst[i%callers] {
					copy(d, w.arena[froms[i]+k])
				}
			}
		})
	}
	bytes := float64(b.N) * float64(calls*batch*w.size)
	b.ReportMetric(bytes/1e9/called.wall.Seconds(), "GB/s")
	b.ReportMetric(copied.wall.Seconds()/called.wall.Seconds(), "of-memcpy")
	b.ReportMetric(bared.wall.Seconds()/called.wall.Seconds(), "of-bare")
	b.ReportMetric(called.cpu.Seconds()/(bytes/1e9), "cpu-s/GB")
	b.ReportMetric(bared.cpu.Seconds()/(bytes/1e9), "bare-cpu-s/GB")
	b.ReportMetric(copied.cpu.Seconds()/(bytes/1e9), "copy-cpu-s/GB")
	b.ReportMetric(called.wall.Seconds()*1e6/float64(b.N*calls)*float64(callers), "us/call")
}

type spent struct{ wall, cpu time.Duration }

func (s *spent) add(f func()) {
	start, cpu := time.Now(), cpuTime()
	f()
	s.wall += time.Since(start)
	s.cpu += cpuTime() - cpu
}

// bare is what the sockets alone can do: two connections, writev of windows out of the pages, recv with MSG_WAITALL
// into the destinations in pieces of 256 KiB, each hashed. No protocol.
type bare struct {
	w     *bench
	files [2]*os.File // the reading ends
	ask   [2]chan [2]int
}

func newBare(b *testing.B, w *bench) *bare {
	l := listen(b)
	defer l.Close()
	x := &bare{w: w}
	for i := range x.files {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			b.Fatal(err)
		}
		s, err := l.Accept()
		if err != nil {
			b.Fatal(err)
		}
		x.files[i] = blocking(b, c)
		from, ask := blocking(b, s), make(chan [2]int)
		x.ask[i] = ask
		go func() {
			defer from.Close()
			for r := range ask {
				x.serve(int(from.Fd()), r[0], r[1])
			}
		}()
		b.Cleanup(func() { close(ask); x.files[i].Close() })
	}
	return x
}

func blocking(b *testing.B, c net.Conn) *os.File {
	f, err := c.(*net.TCPConn).File()
	if err != nil {
		b.Fatal(err)
	}
	c.Close()
	fd := int(f.Fd())
	if err := errors.Join(syscall.SetNonblock(fd, false), syscall.SetsockoptString(fd, syscall.IPPROTO_TCP, 13, "cubic")); err != nil {
		b.Fatal(err)
	}
	return f
}

func (x *bare) serve(fd, from, n int) {
	var iov []syscall.Iovec
	for i := range n {
		p := x.w.arena[from+i]
		iov = append(iov, syscall.Iovec{Base: &p[0], Len: uint64(len(p))})
		if len(iov)*len(p) < 1<<20 && i < n-1 {
			continue
		}
		for left := iov; len(left) > 0; {
			k, _, e := syscall.Syscall(syscall.SYS_WRITEV, uintptr(fd), uintptr(unsafe.Pointer(&left[0])), uintptr(len(left)))
			if e == syscall.EINTR {
				continue
			}
			if e != 0 {
				panic(e)
			}
			for k > 0 {
				m := min(uint64(k), left[0].Len)
				k -= uintptr(m)
				if left[0].Len -= m; left[0].Len == 0 {
					left = left[1:]
				} else {
					left[0].Base = (*byte)(unsafe.Add(unsafe.Pointer(left[0].Base), m))
				}
			}
		}
		iov = iov[:0]
	}
}

func (x *bare) fetch(b *testing.B, from int, dst [][]byte) {
	half := (len(dst) + 1) / 2
	var wg sync.WaitGroup
	for i, r := range [2][2]int{{0, half}, {half, len(dst)}} {
		if r[0] == r[1] {
			continue
		}
		wg.Go(func() {
			x.ask[i] <- [2]int{from + r[0], r[1] - r[0]}
			for _, d := range dst[r[0]:r[1]] {
				for len(d) > 0 {
					p := d[:min(len(d), 256<<10)]
					n, _, e := syscall.Syscall6(syscall.SYS_RECVFROM, x.files[i].Fd(), uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)), syscall.MSG_WAITALL, 0, 0)
					if e != 0 && e != syscall.EINTR {
						b.Error(e)
						return
					}
					if n > 0 {
						page.PieceSum(p[:n])
						d = d[n:]
					}
				}
			}
		})
	}
	wg.Wait()
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
