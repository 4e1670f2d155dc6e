"""Generates the modules of ``kprobed.v1``, from the protos of this repository or of a source distribution.

They are not kept in the repository, so that they cannot differ from the protos and fit the protobuf that the
package is built with.
"""

import shutil
from importlib import resources
from pathlib import Path

from grpc_tools import protoc
from setuptools import setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).resolve().parent


def protos() -> Path:
    """The directory that has `kprobed/v1/*.proto`."""
    for directory in (HERE / "protos", HERE.parent.parent / "proto"):
        if (directory / "kprobed" / "v1").is_dir():
            return directory
    raise SystemExit("the protos are missing: build this in a checkout of kprobed, or from a source distribution")


class Build(build_py):
    """Adds the package `kprobed.v1` to what is built."""

    def run(self) -> None:
        super().run()
        source, target = protos(), Path(self.build_lib)
        files = sorted(str(file.relative_to(source)) for file in source.glob("kprobed/v1/*.proto"))
        google = resources.files("grpc_tools").joinpath("_proto")
        arguments = ["protoc", f"-I{source}", f"-I{google}"]
        arguments += [f"--{kind}_out={target}" for kind in ("python", "pyi", "grpc_python")]
        if protoc.main(arguments + files) != 0:
            raise SystemExit("protoc failed: see above")
        (target / "kprobed" / "v1" / "__init__.py").write_text('"""Generated from kprobed/v1/*.proto."""\n')
        for file in files:
            shutil.copy(source / file, target / file)


setup(cmdclass={"build_py": Build}, packages=["kprobed"])
