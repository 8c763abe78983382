# make test   everything that must hold before a change lands (README), JOBS parts of it at a time
# make proto  regenerate proto/quire/v1 and python/quire_kv/quire.binpb from the .proto files
# make fuzz   every fuzz target for FUZZTIME each
# make build  bin/quire: one static binary

GO          ?= go
FUZZTIME    ?= 30s
JOBS        ?= 2
TESTFLAGS   ?=
STATICCHECK := $(GO) tool -modfile=tools/go.mod staticcheck
BUF         := $(GO) tool -modfile=tools/buf/go.mod buf

# The race detector runs where goroutines are, at a tenth of the speed: long searches are whole without it, and short with it.
RACE_DIRS := store store/frame store/server store/server/data store/server/record store/server/shm store/shm/socket store/client store/host store/rpc namespace namespace/memregistry \
             namespace/pebbleregistry internal/auth internal/daemon internal/demo internal/pebblefuse store/disk store/disk/index e2e
RACE      := $(foreach d,$(RACE_DIRS),$(if $(wildcard $(d)/*_test.go),./$(d)))

# Everything but the race run is built without cgo: two flavours of each package at most.
export CGO_ENABLED := 0

.DEFAULT_GOAL := build
PYTHON := test-python-engines test-python-core
ENGINE := test-python-vllm test-python-sglang test-python-lmcache
# Engines go one after the other, and beside what mostly waits.
PARTS  := format vet staticcheck proto-check $(PYTHON) test-plain test-race cross
.PHONY: build test $(PARTS) $(ENGINE) test-python proto proto-baseline fuzz clean

build:
	$(GO) build -trimpath -o bin/quire ./cmd/quire

# Much of it waits: for answers, engines and stores that are away. Each part's output comes when the part has ended.
test:
	@$(MAKE) --no-print-directory -j$(JOBS) --output-sync=target $(PARTS)

format:
	@echo '== gofmt'
	@bad="$$(gofmt -l .)"; \
	  if [ -n "$$bad" ]; then echo "not formatted (run gofmt -w):"; echo "$$bad"; exit 1; fi

vet:
	@echo '== go vet'
	$(GO) vet ./...

staticcheck:
	@echo '== staticcheck'
	$(STATICCHECK) ./...

proto-check:
	@echo '== proto: lint, breaking changes, generated code'
	$(BUF) lint
	$(BUF) breaking --against proto/baseline.binpb
	@BUF='$(BUF)' tools/check/generated.sh

cross:
	@echo '== cross-builds'
	@GO='$(GO)' tools/check/cross.sh

test-plain:
	@echo '== go test'
	$(GO) test $(TESTFLAGS) ./...

test-race:
	@echo '== go test -race'
	CGO_ENABLED=1 $(GO) test -race -short $(TESTFLAGS) $(RACE)

test-python: $(PYTHON)

$(PYTHON) $(ENGINE): test-python-%:
	@tools/check/python.sh $*

proto:
	$(BUF) generate
	$(BUF) build --as-file-descriptor-set --exclude-source-info -o python/quire_kv/quire.binpb

# Only with a release: from then on the published messages may grow and never change.
proto-baseline:
	$(BUF) build -o proto/baseline.binpb

fuzz:
	@GO='$(GO)' tools/check/fuzz.sh $(FUZZTIME)

clean:
	rm -rf bin dist
