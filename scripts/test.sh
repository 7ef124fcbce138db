#!/usr/bin/env bash
# test.sh KIND [ctest options]: runs the tests that build.sh KIND has built (native or asan).
source "$(dirname "$0")/common.sh"

folder=$(build_folder "$1")
shift
# A leak of one test binary is reported at its end; the stack's use after return is off by default.
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_stack_use_after_return=1:strict_string_checks=1}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
exec ctest --test-dir "$folder" --output-on-failure --no-tests=error "$@" </dev/null
