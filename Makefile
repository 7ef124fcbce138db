# Every target works from a fresh clone: it installs and downloads what is missing (scripts/), and
# with nothing changed only looks. `build` is a link to this processor's build-<key>/.
.DEFAULT_GOAL := build
.PHONY: asan bench build clean demo deps dist format help install lint packages test

PREFIX ?= /usr/local
DESTDIR ?=
# Passed on: make test TEST_FLAGS='-R kv', make bench BENCH_FLAGS='-d 0,4096'.
TEST_FLAGS ?=
BENCH_FLAGS ?= -p 512,6800 -n 64 -d 0,4096,7000
export DESTDIR

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' Makefile

demo: build  ## ask a question about the example documents, beside llama.cpp
	@scripts/demo.sh

build: deps  ## build/bin/winnow, tuned for this processor (the default target)
	@scripts/build.sh native programs

test: deps  ## build and run every test
	@scripts/build.sh native all
	@scripts/test.sh native $(TEST_FLAGS)

asan: deps  ## the same tests under AddressSanitizer and UBSan
	@scripts/build.sh asan all
	@scripts/test.sh asan $(TEST_FLAGS)

lint: deps  ## clang-format, layering, clang-tidy
	@scripts/install-packages.sh lint
	@scripts/build.sh native
	@scripts/lint.sh

format: packages  ## let clang-format rewrite what it would complain about
	@scripts/install-packages.sh lint
	@scripts/lint.sh --format

bench: build  ## measure against llama.cpp on the default model
	@build/bin/winnow bench -m default --peer llama.cpp $(BENCH_FLAGS)

dist: deps  ## a portable archive in build-dist/
	@scripts/build.sh dist programs
	@cd build-dist && cpack

install: build  ## into $(DESTDIR)$(PREFIX)
	@cmake --install build --prefix "$(PREFIX)" --component winnow

deps: packages  ## Debian packages, llama.cpp's sources, the default model
	@scripts/fetch-llama.sh
	@scripts/fetch-model.sh

packages:
	@scripts/install-packages.sh build

clean:  ## remove the build folders; downloads stay in .deps/
	rm -rf build build-*/ compile_commands.json
