#!/bin/sh
# Makes .venv with vkml in it: finds or installs Python 3.11+ and, where there may be a GPU, the Vulkan loader.
# usage: tools/environment.sh [EXTRAS]      EXTRAS as pip takes them: image, or test,image
set -eu
cd "$(dirname "$0")/.."
extras=${1:-}

say() { printf '%s\n' "$*" >&2; }

# Installs Debian packages where that is possible; false where it is not.
install_packages() {
  command -v apt-get >/dev/null 2>&1 || return 1
  if [ "$(id -u)" = 0 ]; then as_root=; elif sudo -n true 2>/dev/null; then as_root="sudo -n"; else return 1; fi
  say "installing $*"
  DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -qq "$@" >/dev/null 2>&1 </dev/null && return 0
  $as_root apt-get update -qq >/dev/null 2>&1 </dev/null || true
  DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -qq "$@" >/dev/null </dev/null
}

# Prints a Python of version 3.11 or newer that can make virtual environments.
find_python() {
  for name in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11 /usr/bin/python3}; do
    "$name" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 || continue
    printf '%s\n' "$name"
    return 0
  done
  return 1
}

python=.venv/bin/python
if ! "$python" -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
  system=$(find_python) || {
    install_packages python3 python3-venv || true
    system=$(find_python) || { install_packages python3.11 python3.11-venv || true; system=$(find_python); } || {
      say "Python 3.11 or newer with the venv module is needed; install it (Debian, Ubuntu: python3-venv)"
      exit 1
    }
  }
  say "making .venv with $("$system" --version)"
  rm -rf .venv
  "$system" -m venv .venv
fi

# A GPU without the Vulkan loader: the loader is one small package. Without a GPU the CPU needs none.
if ls /dev/dri/renderD* /dev/nvidia0 >/dev/null 2>&1 && ! ldconfig -p 2>/dev/null | grep -q libvulkan.so.1; then
  PATH=$PATH:/sbin
  ldconfig -p | grep -q libvulkan.so.1 || install_packages libvulkan1 ||
    say "no Vulkan loader (package libvulkan1), so the GPU stays unused"
fi

stamp=.venv/installed-${extras:-plain}
case ",$extras," in *,test,* | *,bench,* | *,docs,*) constraints=tools/constraints.txt ;; *) constraints= ;; esac
wanted=$(cksum pyproject.toml $constraints)
if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
  say "installing vkml${extras:+[$extras]} and what it needs into .venv (once; a minute or two)"
  "$python" -m pip install --quiet --disable-pip-version-check -e ".${extras:+[$extras]}" \
    ${constraints:+-c "$constraints"} </dev/null
  printf '%s' "$wanted" >"$stamp"
fi
