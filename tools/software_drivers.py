"""Brings software Vulkan drivers and a current validation layer into a folder, from Debian's packages.

usage: python tools/software_drivers.py DIRECTORY      then: . DIRECTORY/env.sh

Nothing is installed: packages are downloaded through apt with lists of its own, unpacked, and the few
libraries that matter are kept (about 170 MB). Needs Debian 12 or newer, or Ubuntu 24.04 or newer; no root.
The standard library only.

* lavapipe, Mesa's CPU driver. Debian 12's own is too old (Vulkan 1.3, no memory budget), so there it is
  Debian 13's backport, linked anew against the older glibc (see `accept_older_glibc`).
* SwiftShader, a second vendor's, and the validation layer: both come inside Debian's chromium-common. Ubuntu
  has no such package: it gets the distribution's own validation layer and no SwiftShader.
"""

from __future__ import annotations

import json
import platform
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

RECIPE = 5
"""Raise it when what is brought or its layout changes: folders of another recipe are filled anew."""


class Failure(Exception):
    """Something the caller must be told in one line."""


@dataclass(frozen=True)
class Recipe:
    """Which packages of which suites serve one release of a distribution."""

    suites: tuple[str, ...]
    """Suites of the main mirror to read lists of; empty: the sources as the system has them."""
    default_suite: str
    foreign: tuple[str, ...]
    """Packages unpacked without what they depend on."""
    native: tuple[str, ...]
    """Packages unpacked with all they depend on that the system lacks."""
    leave_out: tuple[str, ...] = ()
    """Packages named only for what they depend on (regular expressions)."""


def debian_recipe(codename: str, has_security: bool) -> Recipe:
    """What serves Debian 12 and newer."""
    chromium = f"chromium-common/{codename}-security" if has_security else f"chromium-common/{codename}"
    if codename == "bookworm":
        return Recipe(
            suites=("bookworm", "trixie", "trixie-backports"),
            default_suite="bookworm",
            foreign=("mesa-vulkan-drivers/trixie-backports", "libdisplay-info2/trixie", chromium),
            native=("libllvm19", "mesa-vulkan-drivers", "libvulkan1"),
            leave_out=("mesa-vulkan-drivers", r"libllvm(?!19$)\d+"),
        )
    return Recipe((codename,), codename, (chromium,), ("mesa-vulkan-drivers", "libvulkan1"))


UBUNTU = Recipe((), "", (), ("mesa-vulkan-drivers", "vulkan-validationlayers", "libvulkan1"))


# --- apt ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sources:
    """Where the system's apt gets its packages."""

    mirror: str
    security: str | None


def run(command: Sequence[str], where: Path | None = None) -> str:
    """Runs a command and returns what it printed; `Failure` with its last words otherwise."""
    try:
        done = subprocess.run(command, cwd=where, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    except FileNotFoundError:
        raise Failure(f"{command[0]} is not there; this script needs Debian or Ubuntu") from None
    if done.returncode:
        words = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise Failure(f"{' '.join(command[:1])} failed: " + " | ".join(words[-3:] or ["no message"]))
    return done.stdout


ALIASES = ("oldstable", "stable", "testing", "unstable", "sid")


def sources(codename: str) -> Sources:
    """The system's mirrors. Works before any ``apt-get update``: it asks what an update would fetch."""
    listing = run(["apt-get", "-o", "Debug::NoLocking=1", "--print-uris", "update"])
    entries = re.findall(r"'(\S+)/dists/(\S+)/main/binary-[^']+'", listing)
    security = next(
        (uri for uri, suite in entries if suite in (f"{codename}-security", f"{codename}/updates")), None
    )
    mirrors = [uri for uri, suite in entries if suite in (codename, *ALIASES)]
    if not mirrors:
        raise Failure(f"apt has no source for the main part of {codename} (see /etc/apt/sources.list)")
    # Other repositories may use the distribution's code names, too; the distribution's own host goes first.
    return Sources(min(mirrors, key=lambda uri: "debian.org" not in uri), security)


class Apt:
    """apt-get with lists and a cache of its own in `folder`: needs neither root nor an earlier update."""

    def __init__(self, folder: Path, recipe: Recipe, found: Sources, codename: str) -> None:
        for each in ("lists/partial", "cache/archives/partial", "packages"):
            (folder / each).mkdir(parents=True)
        self.packages = folder / "packages"
        self.options = [
            *("-o", f"Dir::State::lists={folder / 'lists'}", "-o", f"Dir::Cache={folder / 'cache'}"),
            *("-o", "APT::Get::List-Cleanup=0", "-o", "APT::Sandbox::User=", "-o", "Debug::NoLocking=1"),
            *("-o", "Acquire::Retries=3", "-o", "Acquire::Languages=none", "-qq"),
        ]
        if recipe.suites:
            keys = [Path("/usr/share/keyrings") / f"debian-archive-keyring.{end}" for end in ("gpg", "pgp")]
            signed = next((f"[signed-by={key}] " for key in keys if key.exists()), "")
            lines = [f"deb {signed}{found.mirror} {suite} main" for suite in recipe.suites]
            if found.security:
                lines.append(f"deb {signed}{found.security} {codename}-security main")
            (folder / "sources.list").write_text("\n".join(lines) + "\n")
            self.options += ["-o", f"Dir::Etc::sourcelist={folder / 'sources.list'}"]
            self.options += ["-o", "Dir::Etc::sourceparts=/nonexistent"]
            self.options += ["-o", f"APT::Default-Release={recipe.default_suite}"]

    def update(self) -> None:
        run(["apt-get", *self.options, "update"])
        if not any((self.packages.parent / "lists").glob("*Packages*")):
            raise Failure("apt-get update brought no package lists; is there a network?")

    def missing(self, names: Iterable[str]) -> list[str]:
        """The named packages and all they depend on, less what the system has."""
        command = [
            "apt-get",
            *self.options,
            "-y",
            "--no-install-recommends",
            "--print-uris",
            "install",
            *names,
        ]
        return [line.split()[1].split("_")[0] for line in run(command).splitlines() if line.startswith("'")]

    def download(self, names: Iterable[str]) -> list[Path]:
        run(["apt-get", *self.options, "download", *names], self.packages)
        return sorted(self.packages.glob("*.deb"))


# --- libraries ----------------------------------------------------------------------------------------------

SECTION_DYNAMIC_SYMBOLS = 11
SECTION_VERSIONS_NEEDED = 0x6FFFFFFE
BASE_VERSION = {62: "GLIBC_2.2.5", 183: "GLIBC_2.17"}
"""ELF machine → the version that glibc's oldest symbols carry on it (x86-64, AArch64)."""


def accept_older_glibc(library: Path) -> None:
    """Lets a library linked against glibc 2.38 load on 2.36, where strtol's family is all it needs of 2.38.

    glibc 2.38 gave these functions second names for C23 (``__isoc23_strtol``). The imports get their older
    names back, and the version record their oldest version. The file is changed in place.
    """
    image = bytearray(library.read_bytes())
    section_table = struct.unpack_from("<Q", image, 0x28)[0]
    machine = struct.unpack_from("<H", image, 0x12)[0]
    entry_bytes, entries = struct.unpack_from("<HH", image, 0x3A)
    # type, offset, size, link of each section
    sections = [
        (fields[1], fields[4], fields[5], fields[6])
        for fields in (
            struct.unpack_from("<IIQQQQIIQQ", image, section_table + i * entry_bytes) for i in range(entries)
        )
    ]
    symbols = next(each for each in sections if each[0] == SECTION_DYNAMIC_SYMBOLS)
    needed = next(each for each in sections if each[0] == SECTION_VERSIONS_NEEDED)
    strings = sections[symbols[3]][1]

    def text(offset: int) -> str:
        return image[strings + offset : image.index(0, strings + offset)].decode()

    base: tuple[int, int] | None = None
    newer: list[int] = []
    for version_at, digest, name_offset in versions_of(image, needed[1], text, "libc.so.6"):
        if text(name_offset) == BASE_VERSION.get(machine):
            base = digest, name_offset
        elif text(name_offset) == "GLIBC_2.38":
            newer.append(version_at)
    if not newer:
        return
    if base is None:
        raise Failure(f"{library.name} needs glibc 2.38 and names no older version to stand in for it")
    for at in range(symbols[1], symbols[1] + symbols[2], 24):
        name_offset = struct.unpack_from("<I", image, at)[0]
        if text(name_offset).startswith("__isoc23_"):
            struct.pack_into("<I", image, at, name_offset + len("__isoc23_"))
    for version_at in newer:
        struct.pack_into("<I", image, version_at, base[0])
        struct.pack_into("<I", image, version_at + 8, base[1])
    library.write_bytes(image)


def versions_of(image: bytearray, start: int, text: object, library: str) -> Iterator[tuple[int, int, int]]:
    """Position, digest and name of each symbol version that the image needs of one library."""
    assert callable(text)
    at = start
    while True:
        _, count, file_name, first, following = struct.unpack_from("<HHIII", image, at)
        version_at = at + first
        if text(file_name) == library:
            for _ in range(count):
                digest, _, _, name, step = struct.unpack_from("<IHHII", image, version_at)
                yield version_at, digest, name
                version_at += step
        if not following:
            return
        at += following


def gather(libraries: Path, unpacked: Path) -> None:
    """Copies into `libraries` whatever its members need, the system lacks and `unpacked` has."""
    available = {file.name: file for file in unpacked.glob("**/*.so*") if file.exists()}
    while True:
        absent: set[str] = set()
        for library in libraries.glob("*.so*"):
            command = ["env", f"LD_LIBRARY_PATH={libraries}", "ldd", str(library)]
            absent.update(re.findall(r"(\S+) => not found", run(command)))
        if not absent:
            return
        for name in sorted(absent):
            if name not in available:
                raise Failure(
                    f"the drivers need {name}, which neither the system nor the downloaded packages have"
                )
            shutil.copy(available[name], libraries / name)


def has_loader() -> bool:
    """Whether the system has a Vulkan loader."""
    found = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True)
    return "libvulkan.so.1" in found.stdout


# --- the folder ---------------------------------------------------------------------------------------------

ENVIRONMENT = """\
# Made by tools/software_drivers.py: lets the Vulkan loader see the drivers and the layer in this folder.
here="@HERE@"
export LD_LIBRARY_PATH="$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export VK_LAYER_PATH="$here/validation"
export VK_DRIVER_FILES="@DRIVERS@"
# A machine with a GPU keeps its drivers; without one they would only be loaded for nothing.
if ls /dev/nvidia0 /dev/dri/renderD* >/dev/null 2>&1; then
  for file in /etc/vulkan/icd.d/*.json /usr/share/vulkan/icd.d/*.json; do
    case "$file" in *lvp*|*\\**) ;; *) VK_DRIVER_FILES="$VK_DRIVER_FILES:$file" ;; esac
  done
fi
export LP_NATIVE_VECTOR_WIDTH=256  # lavapipe's cooperative matrices crash at 128 and 512
# LLVM's passes take two thirds of the time of tests of matrix units, and make trainings no faster.
export GALLIVM_PERF=nopt
export MESA_SHADER_CACHE_DIR="$here/cache/mesa" VKML_CACHE_DIR="$here/cache/vkml"
"""


def write_manifests(folder: Path) -> list[Path]:
    """Writes the loader's descriptions of drivers and layer; returns the drivers'."""
    drivers = [folder / "lib" / "lavapipe.json"]
    driver = {"api_version": "1.4.0", "library_path": "./libvulkan_lvp.so"}
    drivers[0].write_text(json.dumps({"file_format_version": "1.0.1", "ICD": driver}))
    if (folder / "swiftshader").is_dir():
        drivers.append(folder / "swiftshader" / "swiftshader.json")
        # It speaks 1.3 and refuses applications that name a later version, as vkml does. To a driver that
        # states 1.0 here the loader passes the application's version on as 1.0, which it accepts (its own
        # manifest says 1.0.5).
        driver = {"api_version": "1.0.5", "library_path": "./libvk_swiftshader.so"}
        drivers[1].write_text(json.dumps({"file_format_version": "1.0.1", "ICD": driver}))
    layer = {
        "name": "VK_LAYER_KHRONOS_validation",
        "type": "GLOBAL",
        "library_path": "./libVkLayer_khronos_validation.so",
        "api_version": "1.4.0",
        "implementation_version": "1",
        "description": "Khronos validation",
        # Debug messages reach vkml through this extension, which the layer offers beside the drivers.
        "instance_extensions": [{"name": "VK_EXT_debug_utils", "spec_version": "2"}],
    }
    description = {"file_format_version": "1.2.0", "layer": layer}
    (folder / "validation" / "VkLayer_khronos_validation.json").write_text(json.dumps(description))
    return drivers


def one(unpacked: Path, name: str) -> Path:
    found = next((file for file in unpacked.glob(f"**/{name}") if file.exists()), None)
    if found is None:
        raise Failure(f"the downloaded packages hold no {name}")
    return found


def fill(folder: Path, work: Path, recipe: Recipe, found: Sources, codename: str) -> None:
    """Downloads, unpacks and lays out the drivers in the empty `folder`."""
    apt = Apt(work / "apt", recipe, found, codename)
    apt.update()
    native = [
        each
        for each in apt.missing(recipe.native)
        if not any(re.fullmatch(r, each) for r in recipe.leave_out)
    ]
    # What the system has installed is not missing, and still wanted as a copy: the driver itself, the layer,
    # LLVM.
    native += [each for each in recipe.native if each not in native and each not in recipe.leave_out]
    packages = apt.download([*recipe.foreign, *native])
    unpacked = work / "unpacked"
    for package in packages:
        run(["dpkg", "-x", str(package), str(unpacked)])
    for each in ("lib", "validation"):
        (folder / each).mkdir()
    driver = folder / "lib" / "libvulkan_lvp.so"
    shutil.copy(one(unpacked, driver.name), driver)
    if tuple(map(int, platform.libc_ver()[1].split("."))) < (2, 38):
        accept_older_glibc(driver)
    if not has_loader():
        shutil.copy(one(unpacked, "libvulkan.so.1"), folder / "lib" / "libvulkan.so.1")
    shutil.copy(one(unpacked, "libVkLayer_khronos_validation.so"), folder / "validation")
    if any(each.startswith("chromium") for each in recipe.foreign):
        (folder / "swiftshader").mkdir()
        shutil.copy(one(unpacked, "libvk_swiftshader.so"), folder / "swiftshader")
    gather(folder / "lib", unpacked)


def is_filled(folder: Path, wanted: dict[str, object]) -> bool:
    """Whether the folder holds, whole, what this recipe would bring."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
        return manifest["wanted"] == wanted and all(
            (folder / name).stat().st_size == size for name, size in manifest["files"].items()
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False


def release() -> dict[str, str]:
    """The fields of os-release."""
    lines = Path("/etc/os-release").read_text().splitlines()
    return {
        key: value.strip("\"'") for key, _, value in (line.partition("=") for line in lines if "=" in line)
    }


def bring(folder: Path) -> str:
    """Fills `folder` unless it is filled already; returns one line that says what is there."""
    system = release()
    name, codename = system.get("ID", "?"), system.get("VERSION_CODENAME", "")
    version = tuple(int(part) for part in re.findall(r"\d+", system.get("VERSION_ID", "")))
    if name == "debian" and (not version or version >= (12,)):
        codename = codename or "sid"
        found = sources(codename)
        recipe = debian_recipe(codename, found.security is not None)
    elif name == "ubuntu" and version >= (24, 4):
        found, recipe = Sources("", None), UBUNTU
    else:
        raise Failure(
            f"there is no recipe for {system.get('PRETTY_NAME', name)} (Debian 12+, Ubuntu 24.04+); install "
            "lavapipe and the Khronos validation layer by other means and run the tests with them: "
            "VKML_ALLOW_SOFTWARE=1 VKML_VALIDATE=1 .venv/bin/python -m pytest"
        )
    wanted: dict[str, object] = json.loads(
        json.dumps({"recipe": RECIPE, "machine": platform.machine(), "at": str(folder), **asdict(recipe)})
    )
    if not is_filled(folder, wanted):
        print(
            f"software drivers: downloading about 90 MB of packages into {folder.name}",
            file=sys.stderr,
            flush=True,
        )
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".work-", dir=folder) as work:
            fresh = Path(work) / "fresh"
            fresh.mkdir()
            fill(fresh, Path(work), recipe, found, codename)
            for each in fresh.iterdir():
                shutil.rmtree(folder / each.name, ignore_errors=True)
                each.replace(folder / each.name)
        drivers = ":".join(str(path) for path in write_manifests(folder))
        environment = ENVIRONMENT.replace("@HERE@", str(folder)).replace("@DRIVERS@", drivers)
        (folder / "env.sh").write_text(environment)
        kept = [file for each in ("lib", "swiftshader", "validation") for file in (folder / each).glob("*")]
        sizes = {str(file.relative_to(folder)): file.stat().st_size for file in sorted(kept)}
        (folder / "manifest.json").write_text(json.dumps({"wanted": wanted, "files": sizes}, indent=1))
    with_swiftshader = " and SwiftShader" if (folder / "swiftshader").is_dir() else " (no SwiftShader here)"
    return f"software drivers: lavapipe{with_swiftshader}, validation layer in {folder.name}"


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        print(bring(Path(arguments[0]).absolute()))
    except (Failure, OSError) as problem:
        print(f"software drivers could not be brought: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
