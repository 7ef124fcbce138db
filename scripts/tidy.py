"""Runs clang-tidy over our .cc files, in parallel, and only on those that may have changed.

Usage: tidy.py BUILD_FOLDER JOBS FILE... Headers are checked through the files that include them.
A file that passed is remembered in BUILD_FOLDER/tidy/ by a hash of all that its result depends on:
its text, the text of our headers it includes, its compile command, .clang-tidy and the tool.
"""

import concurrent.futures
import hashlib
import json
import pathlib
import re
import subprocess
import sys

QUOTED_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
ROOTS = [pathlib.Path("src"), pathlib.Path(".")]


def with_headers(path, seen):
    """Adds `path` and our headers that it includes, directly or not, to `seen`: {path: text}."""
    seen[path] = path.read_text(encoding="utf-8")
    for name in QUOTED_INCLUDE.findall(seen[path]):
        for header in (root / name for root in ROOTS + [path.parent]):
            if header.is_file():
                if header not in seen:
                    with_headers(header, seen)
                break
    return seen


def key(path, command, tool):
    digest = hashlib.sha256((tool + command).encode())
    for name, text in sorted(with_headers(path, {}).items()):
        digest.update(f"{name}\0{text}\0".encode())
    return digest.hexdigest()


def check(folder, path):
    # llama.cpp has a src/ too, hence the whole path.
    ours = f"--header-filter=^{re.escape(str(pathlib.Path.cwd()))}/(src|bench|testing)/"
    # What gcc understands and clang does not is no finding; the compiler reports its own warnings.
    result = subprocess.run(
        ["clang-tidy", "-p", str(folder), "--quiet", "--warnings-as-errors=*", ours,
         "--extra-arg=-Wno-everything", str(path)],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return result.returncode == 0, result.stdout + result.stderr


def main():
    folder, jobs = pathlib.Path(sys.argv[1]), int(sys.argv[2])
    commands = {pathlib.Path(entry["file"]): entry["command"]
                for entry in json.loads((folder / "compile_commands.json").read_text())}
    tool = pathlib.Path(".clang-tidy").read_text(encoding="utf-8") + subprocess.run(
        ["clang-tidy", "--version"], capture_output=True, text=True, check=True).stdout
    passed = folder / "tidy"
    passed.mkdir(exist_ok=True)
    sources = [path for path in map(pathlib.Path, sys.argv[3:]) if path.suffix == ".cc"]
    unbuilt = [str(path) for path in sources if path.resolve() not in commands]
    if unbuilt:
        print("in no CMakeLists.txt:", *unbuilt)
        return 1
    keys = {path: key(path, commands[path.resolve()], tool) for path in sources}
    due = [path for path in keys if not (passed / keys[path]).exists()]
    print(f"{len(keys)} files, {len(keys) - len(due)} unchanged since they passed", flush=True)

    failed = 0
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for path, (ok, output) in zip(due, pool.map(lambda path: check(folder, path), due)):
            if ok:
                (passed / keys[path]).touch()
            else:
                failed += 1
                print(f"{path}:\n{output}", flush=True)
    if failed:
        print(f"clang-tidy: {failed} of {len(keys)} files failed")
    return 1 if failed else 0


sys.exit(main())
