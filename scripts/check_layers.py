"""Fails where a file includes what its place in the layering does not allow.

Usage: check_layers.py FILE... (paths from the root). The layers are docs/design.md's: a folder of
src/ includes only itself and those before it in LAYERS.
"""

import pathlib
import re
import sys

LAYERS = ["core", "model", "text", "kv", "ops", "policy", "attention", "ledger", "engine",
          "eval", "server", "cli"]
# Above the engine and below what people run.
BESIDE = {"bench": LAYERS.index("eval"), "testing": LAYERS.index("engine")}
INCLUDE = re.compile(r'^\s*#\s*include\s+(["<])([^">]+)[">]')
LLAMA = re.compile(r"^(ggml|gguf|llama)[\w.-]*\.h$")
MAY_SEE_LLAMA = re.compile(r"^(src/(core|model|text)/|src/ops/\w+_cpu(\.cc|-inl\.h)$|src/engine/sampler|"
                           r"src/policy/residual/\w+_file\.cc$|bench/|testing/|.*_test\.(cc|h)$)")
# A kernel's test may compile it for every target, as the kernel does.
MAY_SEE_HIGHWAY = re.compile(r"(_cpu\.cc|-inl\.h|^src/ops/\w+_test\.(cc|h))$|^bench/")
MAY_SEE_CUDA = re.compile(r"_cuda\.(cu|cuh)$")


def is_test(path):
    return path.endswith(("_test.cc", "_test.h")) or path.startswith("testing/")


def complaint(path, included, quoted):
    """Why `path` may not include `included`, or None."""
    if LLAMA.match(included) and not MAY_SEE_LLAMA.match(path):
        return "llama.cpp and ggml are seen only in core, model, text, ops/*_cpu.cc, the sampler and readers of tensor files"
    if included.startswith("hwy/") and not MAY_SEE_HIGHWAY.search(path):
        return "Highway is seen only in *_cpu.cc, *-inl.h and tests of ops"
    if re.match(r"^(cuda|cublas|cudnn)", included) and not MAY_SEE_CUDA.search(path):
        return "CUDA is seen only in *_cuda.cu"
    if not quoted:
        return None
    parts = pathlib.PurePath(path).parts
    own = parts[1] if parts[0] == "src" else parts[0]
    target = pathlib.PurePath(included).parts[0]
    if target == own or target not in LAYERS and target not in BESIDE:
        return None
    if target == "testing":
        return None if is_test(path) or own == "bench" else "testing/ is for tests and benchmarks"
    if target == "bench":
        return None if own == "cli" else "bench/ is used only by the command line"
    limit = BESIDE.get(own, LAYERS.index(own) if own in LAYERS else len(LAYERS))
    if LAYERS.index(target) > limit:
        return f"{target} is above {own}"
    return None


def main():
    failures = 0
    for path in sys.argv[1:]:
        for number, line in enumerate(pathlib.Path(path).read_text(encoding="utf-8").split("\n"), 1):
            include = INCLUDE.match(line)
            if not include:
                continue
            why = complaint(path, include[2], include[1] == '"')
            if why:
                print(f"{path}:{number}: includes {include[2]}: {why}", file=sys.stderr)
                failures += 1
    return 1 if failures else 0


sys.exit(main())
