package server_test

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/store/server"
	"github.com/quire-kv/quire/store/storetest"
)

// rawCodec sends bytes as they are and takes any answer.
type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }

func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}

func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

// FuzzRequests sends arbitrary bytes as the request of any method of the data path: whatever they say, the handler
// neither panics (the world's Panicked fails the test) nor answers INTERNAL, and the page that is there stays.
func FuzzRequests(f *testing.F) {
	s := engineSpace(f, server.Limits{MaxKeys: 64, MaxBatchBytes: 16 << 20})
	hashes := storetest.Chain("x", 2)
	s.publish(hashes)
	token := &quirev1.FencingToken{BootId: make([]byte, 16), Sequence: 1}
	view := &quirev1.View{H1: 4, L1: 4}
	calls := []struct {
		method string
		seed   proto.Message
	}{
		{quirev1.PageService_BatchExists_FullMethodName, &quirev1.BatchExistsRequest{Namespace: s.ref, Runs: s.runs(hashes), View: view}},
		{quirev1.PageService_BeginPublish_FullMethodName, &quirev1.BeginPublishRequest{Namespace: s.ref, Run: s.run(hashes[:32]), Pages: []*quirev1.PublishPage{{PayloadBytes: pageBytes, View: view}}}},
		{quirev1.PageService_WritePages_FullMethodName, &quirev1.WritePagesRequest{Namespace: s.ref, Token: token, Page: 1, Grant: 1, Offset: 5, Chunk: []byte("bytes")}},
		{quirev1.PageService_CommitPublish_FullMethodName, &quirev1.CommitPublishRequest{Namespace: s.ref, Token: token, Pages: []*quirev1.CommitPage{{Headers: [][]byte{s.fix.Header(hashes[:32], s.fix.Geometry.Full(), s.fix.Payload(hashes[:32], s.fix.Geometry.Full(), 0))}}}}},
		{quirev1.PageService_AbortPublish_FullMethodName, &quirev1.AbortPublishRequest{Namespace: s.ref, Token: token, Pages: []uint32{0, 9}}},
		{quirev1.PageService_RenewLease_FullMethodName, &quirev1.RenewLeaseRequest{Namespace: s.ref, Lease: &quirev1.RenewLeaseRequest_Token{Token: token}}},
		{quirev1.PageService_ReleaseLease_FullMethodName, &quirev1.ReleaseLeaseRequest{Namespace: s.ref, LeaseId: make([]byte, 16), Run: s.run(hashes)}},
		{quirev1.PageService_Fetch_FullMethodName, &quirev1.FetchRequest{Namespace: s.ref, Run: s.run(hashes), View: view, Resume: []*quirev1.ResumePage{{Page: 1, ExtentIds: [][]byte{make([]byte, 40)}}}}},
		{quirev1.PageService_ReportCorrupt_FullMethodName, &quirev1.ReportCorruptRequest{Namespace: s.ref, Run: s.run(hashes), ExtentIds: [][]byte{make([]byte, 40)}}},
		{quirev1.PageService_Touch_FullMethodName, &quirev1.TouchRequest{Namespace: s.ref, Runs: s.runs(hashes)}},
		{quirev1.PageService_Pin_FullMethodName, &quirev1.PinRequest{Namespace: s.ref, Runs: s.runs(hashes), Unpin: true}},
		{quirev1.PageService_Report_FullMethodName, &quirev1.ReportRequest{Namespace: s.ref, Instance: "i", Engine: "e", Adapter: "a", Counters: counters(), Breaker: 1, Uptime: durationpb.New(time.Second)}},
		{quirev1.NamespaceService_Open_FullMethodName, &quirev1.OpenRequest{Spec: specText("w", "1")}},
		{quirev1.NamespaceService_Diff_FullMethodName, &quirev1.DiffRequest{A: &quirev1.DiffSide{Side: &quirev1.DiffSide_Id{Id: s.ref.Id}}}},
		{quirev1.NamespaceService_Negotiate_FullMethodName, &quirev1.NegotiateRequest{Spec: specText("w", "2")}},
	}
	for i, c := range calls {
		raw, err := proto.Marshal(c.seed)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(uint8(i), raw)
		f.Add(uint8(i), raw[:len(raw)-1])
	}
	f.Fuzz(func(t *testing.T, which uint8, raw []byte) {
		c := calls[int(which)%len(calls)]
		st, err := s.cc.NewStream(ctx(t), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, c.method, grpc.ForceCodecV2(rawCodec{}))
		if err != nil {
			t.Fatal(err)
		}
		if err = st.SendMsg(&raw); err == nil {
			err = st.CloseSend()
		}
		for in := new([]byte); err == nil; {
			err = st.RecvMsg(in)
		}
		// gRPC itself answers INTERNAL to bytes that its codec cannot read.
		if status.Code(err) == codes.Internal && !strings.Contains(err.Error(), "unmarshal") {
			t.Fatalf("%s: %v", c.method, err)
		}
		if why := s.w.storeExists(s.w.store.Intern("x"), s, hashes); why != 0 {
			t.Fatalf("%s: the store answers %v\n", c.method, why)
		}
	})
}
