"""Answers pip's question for the metadata of a source package with the PKG-INFO that it carries.

Even `pip download` prepares metadata, for which it would install the package's build system and run
it: minutes, and downloads that no hash pins. With this folder on PYTHONPATH and
--no-build-isolation, nothing is installed and nothing of the package runs.
"""

import email
import pathlib
import shutil


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    package = email.message_from_string(pathlib.Path("PKG-INFO").read_text(encoding="utf-8"))
    folder = f"{package['Name'].replace('-', '_')}-{package['Version']}.dist-info"
    info = pathlib.Path(metadata_directory) / folder
    info.mkdir()
    shutil.copy("PKG-INFO", info / "METADATA")
    return info.name
