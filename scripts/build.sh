#!/usr/bin/env bash
# build.sh KIND [TARGET...]: configures where needed and builds. KIND is native, asan or dist.
source "$(dirname "$0")/common.sh"

kind=$1
shift
folder=$(build_folder "$kind")

options=(-G Ninja -S "$root" -B "$folder" -DCMAKE_BUILD_TYPE=Release
  -DWINNOW_LLAMA_DIR="$deps/llama.cpp")
case $kind in
  # Only Winnow's own code is instrumented: ggml's kernels would take the whole day, and their
  # objects, being the same as the native build's, come from ccache.
  asan) options+=(-DWINNOW_SANITIZE=address,undefined) ;;
  dist) options+=(-DWINNOW_NATIVE=OFF -DWINNOW_TESTS=OFF) ;;
esac
if [ -n "${CC:-}" ]; then options+=(-DCMAKE_C_COMPILER="$CC"); fi
if [ -n "${CXX:-}" ]; then options+=(-DCMAKE_CXX_COMPILER="$CXX"); fi
if command -v ccache >/dev/null; then
  options+=(-DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
  export CCACHE_BASEDIR=$root
fi

# Ninja runs cmake again by itself when a CMakeLists.txt changes.
if [ ! -e "$folder/build.ninja" ] || [ "$(cat "$folder/options" 2>/dev/null)" != "${options[*]}" ]
then
  say "Configuring $(basename "$folder")"
  # The output is shown only where it helps: llama.cpp warns that it is not a git checkout.
  mkdir -p "$folder"
  if ! cmake "${options[@]}" >"$folder/configure.log" 2>&1; then
    cat "$folder/configure.log" >&2
    die "the configuration failed"
  fi
  echo "${options[*]}" >"$folder/options"
fi

if [ "$kind" = native ]; then
  if [ -e "$root/build" ] && [ ! -L "$root/build" ]; then
    die "$root/build is in the way: it is a link to the folder of this machine's build"
  fi
  ln -sfn "$(basename "$folder")" "$root/build"
  ln -sfn build/compile_commands.json "$root/compile_commands.json"
fi

if [ $# -eq 0 ]; then
  ninja -C "$folder" --quiet build.ninja  # only what clang-tidy needs to be right
else
  say "Building $* in $(basename "$folder") (some minutes the first time)"
  # On a terminal ninja shows its progress on one line; a log needs only what goes wrong.
  quiet=(--quiet)
  if [ -t 1 ]; then quiet=(); fi
  ninja -C "$folder" -j "$(jobs)" "${quiet[@]}" "$@"
fi
