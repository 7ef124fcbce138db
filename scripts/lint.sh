#!/usr/bin/env bash
# lint.sh [--quick|--format]: format and layers, then, unless --quick, clang-tidy. --format mends the
# format instead.
source "$(dirname "$0")/common.sh"

cd "$root"
# Tracked files and new ones; a deleted file may still be in the index.
mapfile -t sources < <(git ls-files --cached --others --exclude-standard '*.h' '*.cc' |
  while read -r file; do if [ -e "$file" ]; then echo "$file"; fi; done)

if [ "${1:-}" = --format ]; then
  clang-format -i "${sources[@]}"
  exit 0
fi

say "clang-format: ${#sources[@]} files"
clang-format --dry-run -Werror "${sources[@]}"
say "Layers"
python3 scripts/check_layers.py "${sources[@]}"
if [ "${1:-}" = --quick ]; then exit 0; fi
say "clang-tidy"
python3 scripts/tidy.py "$(build_folder native)" "$(jobs)" "${sources[@]}"
