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
             namespace/pebbleregistry internal/auth internal/daemon internal/demo internal/pebblefuse internal/playback store/disk store/disk/index e2e
RACE      := $(foreach d,$(RACE_DIRS),$(if $(wildcard $(d)/*_test.go),./$(d)))

# Everything but the race run is built without cgo, and all of it without this folder's path: two flavours of each package at
# most, which all checkouts of a machine share in Go's build cache.
export CGO_ENABLED := 0
export GOFLAGS     := $(filter-out -trimpath,$(GOFLAGS)) -trimpath

.DEFAULT_GOAL := build
PYTHON := test-python-engines test-python-core
ENGINE := test-python-vllm test-python-sglang test-python-lmcache
# Engines go one after the other, and beside what mostly waits.
PARTS  := format vet staticcheck proto-check $(PYTHON) test-plain test-race cross
PART   := tools/check/timed.sh
.PHONY: build test $(PARTS) $(ENGINE) test-python proto proto-baseline fuzz clean

build:
	$(GO) build -o bin/quire ./cmd/quire

# Much of it waits: for answers, engines and stores that are away. Each part's output comes when the part has ended, with the
# time that it took; all times come at the end.
test:
	@times="$$(mktemp)"; PART_TIMES="$$times" $(MAKE) --no-print-directory -j$(JOBS) --output-sync=target $(PARTS); code=$$?; \
	  cat "$$times"; rm -f "$$times"; exit $$code

format:
	@$(PART) gofmt sh -c 'bad="$$(gofmt -l .)"; [ -z "$$bad" ] || { echo "not formatted (run gofmt -w):"; echo "$$bad"; exit 1; }'

vet:
	@$(PART) 'go vet' $(GO) vet ./...

staticcheck:
	@$(PART) staticcheck $(STATICCHECK) ./...

proto-check:
	@BUF='$(BUF)' $(PART) 'wire contract' tools/check/proto.sh

cross:
	@GO='$(GO)' $(PART) cross-builds tools/check/cross.sh

# What was vetted is not vetted again with each test. No result is taken from a cache: processes that tests start are built
# from sources of which that knows nothing.
test-plain:
	@$(PART) 'go test' $(GO) test -vet=off -count=1 $(TESTFLAGS) ./...

test-race:
	@CGO_ENABLED=1 $(PART) 'go test -race' $(GO) test -race -short -vet=off -count=1 $(TESTFLAGS) $(RACE)

test-python: $(PYTHON)

$(PYTHON) $(ENGINE): test-python-%:
	@$(PART) 'python $*' tools/check/python.sh $*

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
