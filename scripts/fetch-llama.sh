#!/usr/bin/env bash
# Puts the pinned llama.cpp sources into .deps/llama.cpp.
source "$(dirname "$0")/common.sh"

pin=$root/scripts/requirements-llama.txt
if is_fetched llama.cpp "$pin"; then exit 0; fi

say "Downloading llama.cpp (77 MB)"
mkdir -p "$deps"
scratch=$(mktemp -d "$deps/fetch.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
PYTHONPATH=$root/scripts/sdist_backend PYTHONDONTWRITEBYTECODE=1 \
  pip_download "$pin" "$scratch" --no-binary llama-cpp-python --no-build-isolation
# -m: files get the time of their extraction, so that a change of version is rebuilt.
tar -xmf "$scratch"/llama_cpp_python-*.tar.gz -C "$scratch" --strip-components=2 \
  --wildcards '*/vendor/llama.cpp'
rm "$scratch/llama.cpp/.git" # a submodule's link to nowhere
keep "$scratch/llama.cpp" llama.cpp "$pin"
