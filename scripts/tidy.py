"""Runs clang-tidy over our .cc files, in parallel, and only on those that may have changed.

Usage: tidy.py BUILD_FOLDER JOBS FILE... Headers are checked through the files that include them.
A file that passed is remembered in BUILD_FOLDER/tidy/ by a hash of all that its result depends on:
its text, the text of our headers it includes, its compile command, .clang-tidy, this script and the
tool.

Four fifths of a run go into the headers of the standard library, GoogleTest and JSON, which every
check walks through. So files with the same compile flags are checked by the handful, as one text;
where a handful does not pass it is halved, and only what a single file does is reported.
"""

import concurrent.futures
import hashlib
import json
import pathlib
import re
import shlex
import subprocess
import sys

QUOTED_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
INCLUDE = re.compile(r"^\s*#\s*include\b.*")
# What a line without indentation declares: `TEST(A, B)`, `class A`, `using A =`, `using A;`, `int A(`.
DECLARED = re.compile(r"(?=\w)(?!(?:using )?namespace\b)"
                      r"(?:[A-Z_]*TEST[A-Z_]*\((.*?)\)|(?:class|struct|enum class|enum) (\w+)|"
                      r"using ([\w:]+)(?: =|;)|[^({=;#/]*?([\w:~]+)(?:\[\w*\])* ?[({=;])")
BATCH = 8
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


def clang_tidy(path, *options):
    """(passed, what it says)."""
    # llama.cpp has a src/ too, hence the whole path.
    ours = f"--header-filter=^{re.escape(str(pathlib.Path.cwd()))}/(src|bench|eval|testing)/"
    # What gcc understands and clang does not is no finding; the compiler reports its own warnings.
    result = subprocess.run(
        ["clang-tidy", "--quiet", "--config-file=.clang-tidy", "--warnings-as-errors=*", ours,
         "--extra-arg=-Wno-everything", str(path), *options],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return result.returncode == 0, result.stdout + result.stderr


def flags(command, path):
    """The compile command without compiler, input and output."""
    words = shlex.split(command)
    first = next(i for i, word in enumerate(words) if word.startswith("-"))
    kept, skip = [], False
    for word in words[first:]:
        if skip or word in ("-o", "-c", str(path.resolve())):
            skip = word == "-o" and not skip
        else:
            kept.append(word)
    return tuple(kept)


def batches(due, commands):
    """Files of equal flags, by BATCH, none of which declares what another one declares too."""
    done, open_batches = [], {}
    for path in due:
        text = path.read_text(encoding="utf-8")
        # A macro of one file would hold in the next; Highway's kernels include themselves.
        if re.search(r"^\s*#\s*define\b", text, re.MULTILINE):
            done.append([path])
            continue
        matches = filter(None, map(DECLARED.match, text.splitlines()))
        names = {next(filter(None, match.groups()), "") for match in matches} - {""}
        candidates = open_batches.setdefault(flags(commands[path.resolve()], path), [])
        batch = next((b for b in candidates if not names & b[1]), None)
        if batch is None:
            batch = ([], set())
            candidates.append(batch)
        batch[0].append(path)
        batch[1].update(names)
        if len(batch[0]) == BATCH:
            candidates.remove(batch)
            done.append(batch[0])
    return done + [batch[0] for candidates in open_batches.values() for batch in candidates]


def joined(paths):
    """Their texts as one main file, since some checks look at no other. All includes come
    first, and what several files include stands once."""
    includes, bodies = [], []
    for path in paths:
        lines = path.read_text(encoding="utf-8").splitlines()
        earlier = set(includes)
        includes += [line for line in lines if INCLUDE.match(line) and line not in earlier]
        bodies += [line for line in lines if not INCLUDE.match(line)]
    return "\n".join(includes + bodies) + "\n"


def check(folder, paths, commands):
    """[(path, passed, what clang-tidy says)]. What does not pass together is checked by halves."""
    if len(paths) == 1:
        return [(paths[0], *clang_tidy(paths[0], "-p", str(folder)))]
    name = "-".join(paths[0].with_suffix("").parts)
    batch = folder / "tidy" / f"{name}-and-{len(paths) - 1}-more.cc"
    batch.write_text(joined(paths), encoding="utf-8")
    if clang_tidy(batch, "--", *flags(commands[paths[0].resolve()], paths[0]))[0]:
        return [(path, True, "") for path in paths]
    middle = len(paths) // 2
    return [result for half in (paths[:middle], paths[middle:])
            for result in check(folder, half, commands)]


def main():
    folder, jobs = pathlib.Path(sys.argv[1]), int(sys.argv[2])
    commands = {pathlib.Path(entry["file"]): entry["command"]
                for entry in json.loads((folder / "compile_commands.json").read_text())}
    settings = [pathlib.Path(".clang-tidy"), pathlib.Path(__file__)]
    tool = "".join(path.read_text(encoding="utf-8") for path in settings) + subprocess.run(
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
        for results in pool.map(lambda paths: check(folder, paths, commands),
                                batches(due, commands)):
            for path, ok, output in results:
                if ok:
                    (passed / keys[path]).touch()
                else:
                    failed += 1
                    print(f"{path}:\n{output}", flush=True)
    if failed:
        print(f"clang-tidy: {failed} of {len(keys)} files failed")
    return 1 if failed else 0


sys.exit(main())
