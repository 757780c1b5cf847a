"""Names of onnxruntime's module of that name: what the package is, and whether the system suits it."""

from __future__ import annotations

from vkml.engine.environment import cuda_version, get_version_string, package_name


def check_distro_info() -> None:
    """Accepted: there are no systems to warn of."""


def get_package_name_and_version_info() -> tuple[str, str, str]:
    """The package's name, its version, and CUDA's, of which there is none."""
    return package_name, get_version_string(), cuda_version
