# make test   everything that must hold before a change lands (README)
# make proto  regenerate proto/quire/v1 and python/quire_kv/quire.binpb from the .proto files
# make fuzz   every fuzz target for FUZZTIME each
# make build  bin/quire: one static binary

GO          ?= go
FUZZTIME    ?= 30s
TESTFLAGS   ?=
STATICCHECK := $(GO) tool -modfile=tools/go.mod staticcheck
BUF         := $(GO) tool -modfile=tools/buf/go.mod buf

# The race detector runs where goroutines are; pure packages are replayed without it. Each package runs once.
RACE_DIRS := store store/frame store/server store/server/data store/server/record store/server/shm store/shm/socket store/client store/host store/rpc namespace namespace/memregistry \
             namespace/pebbleregistry internal/auth internal/daemon internal/demo internal/pebblefuse store/disk store/disk/index e2e
RACE      := $(foreach d,$(RACE_DIRS),$(if $(wildcard $(d)/*_test.go),./$(d)))

# Everything but the race run is built without cgo: two flavours of each package at most.
export CGO_ENABLED := 0

.DEFAULT_GOAL := build
.PHONY: build test vet staticcheck format proto-check cross test-plain test-race test-python test-python-core proto proto-baseline fuzz clean

build:
	$(GO) build -trimpath -o bin/quire ./cmd/quire

test: format vet staticcheck proto-check cross test-plain test-race test-python

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
	$(GO) test $(TESTFLAGS) $$($(GO) list ./... | tools/check/without.sh $(RACE))

test-race:
	@echo '== go test -race'
	CGO_ENABLED=1 $(GO) test -race $(TESTFLAGS) $(RACE)

test-python:
	@tools/check/python.sh all

# Without the engines: a minute instead of many.
test-python-core:
	@tools/check/python.sh core

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
