package frame

import quirev1 "github.com/quire-kv/quire/proto/quire/v1"

// methodNames are the numbers that methods travel under, for ever: new ones are appended. 0 is none.
var methodNames = [...]string{
	1:  quirev1.PageService_GetCapabilities_FullMethodName,
	2:  quirev1.PageService_Attach_FullMethodName,
	3:  quirev1.PageService_BatchExists_FullMethodName,
	4:  quirev1.PageService_BeginPublish_FullMethodName,
	5:  quirev1.PageService_WritePages_FullMethodName,
	6:  quirev1.PageService_CommitPublish_FullMethodName,
	7:  quirev1.PageService_AbortPublish_FullMethodName,
	8:  quirev1.PageService_RenewLease_FullMethodName,
	9:  quirev1.PageService_ReleaseLease_FullMethodName,
	10: quirev1.PageService_Fetch_FullMethodName,
	11: quirev1.PageService_ReportCorrupt_FullMethodName,
	12: quirev1.PageService_BatchDelete_FullMethodName,
	13: quirev1.PageService_Touch_FullMethodName,
	14: quirev1.PageService_Pin_FullMethodName,
	15: quirev1.PageService_WatchPages_FullMethodName,
	16: quirev1.PageService_Report_FullMethodName,
}

func methodNumber(name string) (uint16, bool) {
	for i, n := range methodNames {
		if n == name && n != "" {
			return uint16(i), true
		}
	}
	return 0, false
}

// follows says whether a call goes on with the publication that was begun before it on its connection. Every other call ends
// that: what is written without a token is of the Begin right before it, or of none.
func follows(method uint16) bool {
	name := ""
	if int(method) < len(methodNames) {
		name = methodNames[method]
	}
	return name == quirev1.PageService_WritePages_FullMethodName || name == quirev1.PageService_CommitPublish_FullMethodName
}

// longLived says whether a method's stream lasts as long as its caller wants: it gets a connection of its own.
func longLived(method string) bool {
	return method == quirev1.PageService_Attach_FullMethodName || method == quirev1.PageService_WatchPages_FullMethodName
}
