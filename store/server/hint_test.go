package server

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/namespace"
	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
)

// A hint is bounded, and counts only from the tenant whose pages it is of.
func TestHints(t *testing.T) {
	said := &quirev1.Hint{
		Category: quirev1.WorkCategory_WORK_CATEGORY_AGENT, Next: quirev1.NextStep_NEXT_STEP_TOOL_CALL,
		ExpectedReuse: durationpb.New(90 * time.Second), AnswerTokens: 12,
	}
	ns := &namespace.Namespace{Tenant: "a"}
	for name, c := range map[string]struct {
		who  namespace.Principal
		hint *quirev1.Hint
		want evict.Hint
		bad  bool
	}{
		"own":      {namespace.Principal{Tenant: "a", Role: namespace.RoleEngine}, said, evict.Hint{Category: evict.CategoryAgent, Next: evict.NextToolCall, Reuse: 90, Answer: 12}, false},
		"operator": {namespace.Principal{Tenant: "b", Role: namespace.RoleOperator}, said, evict.Hint{Category: evict.CategoryAgent, Next: evict.NextToolCall, Reuse: 90, Answer: 12}, false},
		"granted":  {namespace.Principal{Tenant: "b", Role: namespace.RoleEngine}, said, evict.Hint{}, false},
		"none":     {namespace.Principal{Tenant: "a", Role: namespace.RoleEngine}, nil, evict.Hint{}, false},
		"newer":    {namespace.Principal{Tenant: "a", Role: namespace.RoleEngine}, &quirev1.Hint{Category: 99, Next: -3}, evict.Hint{}, false},
		"far away": {namespace.Principal{Tenant: "a", Role: namespace.RoleEngine}, &quirev1.Hint{ExpectedReuse: durationpb.New(1 << 62)}, evict.Hint{Reuse: maxReuseSeconds}, false},
		"past":     {namespace.Principal{Tenant: "a", Role: namespace.RoleEngine}, &quirev1.Hint{ExpectedReuse: durationpb.New(-1)}, evict.Hint{}, true},
		"invalid":  {namespace.Principal{Tenant: "a", Role: namespace.RoleEngine}, &quirev1.Hint{ExpectedReuse: &durationpb.Duration{Seconds: 1, Nanos: -1}}, evict.Hint{}, true},
	} {
		a := asked{ns: ns, who: c.who}
		if got, err := a.hintOf(c.hint); got != c.want || (err != nil) != c.bad {
			t.Errorf("%s: %+v, %v; want %+v", name, got, err, c.want)
		}
	}
	if len(quirev1.WorkCategory_name) != int(evict.NumCategories) || len(quirev1.NextStep_name) != int(evict.NumNexts) {
		t.Error("the enums of the wire and of the policy differ")
	}
}
