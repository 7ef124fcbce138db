# Functions and places shared by the scripts of this folder, which source it.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
deps=${WINNOW_DEPS_DIR:-$root/.deps}

say() { printf '== %s\n' "$*"; }

die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

jobs() { nproc 2>/dev/null || sysctl -n hw.ncpu 2>/dev/null || echo 2; }

sha256() { if command -v sha256sum >/dev/null; then sha256sum; else shasum -a 256; fi; }

# pip_download REQUIREMENTS FOLDER [pip options]: only what matches the hashes in REQUIREMENTS.
pip_download() {
  local requirements=$1 folder=$2 python
  shift 2
  for python in python3 /usr/bin/python3; do
    if "$python" -m pip --version >/dev/null 2>&1; then
      PIP_DISABLE_PIP_VERSION_CHECK=1 "$python" -m pip download --quiet --no-deps \
        --require-hashes --requirement "$requirements" --dest "$folder" "$@"
      return
    fi
  done
  die "python3 with pip is needed to download $(basename "$requirements" .txt)"
}

# is_fetched NAME REQUIREMENTS: whether NAME in the folder of dependencies came from this very pin.
is_fetched() { [ -e "$deps/$1" ] && cmp -s "$2" "$deps/$1.pin"; }

# keep FILE_OR_FOLDER NAME REQUIREMENTS: the last step of a download. The pin is written after the
# move, so an interrupted download is repeated and never taken for a whole one.
keep() {
  mkdir -p "$(dirname "$deps/$2")"
  rm -rf "${deps:?}/$2" "$deps/$2.pin"
  mv "$1" "$deps/$2"
  cp "$3" "$deps/$2.pin"
}

# build_folder KIND (native, asan or dist). ggml is tuned for the processor it is compiled on, and a
# checkout may be used from several machines: the folder's name says which processor and compiler.
build_folder() {
  local key
  if [ "$1" = dist ]; then
    echo "$root/build-dist"
    return
  fi
  key=$( { grep -m1 -E '^(flags|Features)' /proc/cpuinfo || sysctl -n machdep.cpu.brand_string
           "${CXX:-g++}" --version | head -n 1; } 2>/dev/null | sha256 | cut -c 1-8)
  case $1 in
    native) echo "$root/build-$key" ;;
    asan) echo "$root/build-$key-asan" ;;
    *) die "no such kind of build: $1" ;;
  esac
}
