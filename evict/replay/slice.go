package replay

import (
	"bytes"
	_ "embed"
	"io"
)

//go:embed testdata/mooncake_conversation_800.jsonl
var conversationSlice []byte

// ConversationSlice is the first 800 requests of the Mooncake conversation trace; testdata/README.md says where they
// come from and under which licence.
func ConversationSlice() io.Reader { return bytes.NewReader(conversationSlice) }
