#!/bin/sh
# Installs what `make` needs and does not find, with apt. Does nothing, and asks for no rights, when all is there.
# GTRAIN_SETUP=no skips it: what is optional and missing is then left out of the build.
set -eu

[ "${GTRAIN_SETUP:-yes}" = no ] && exit 0

packages=""    # must be there for a build
optional=""    # make it faster, or are the demo's data
need() { packages="$packages $1"; }
want() { optional="$optional $1"; }

have() { command -v "$1" >/dev/null 2>&1; }
# Whether the C compiler finds a header.
header() { printf '#include <%s>\nint main(void){return 0;}\n' "$1" | cc -E -x c - >/dev/null 2>&1; }

have cmake || need cmake
have ninja || need ninja-build
have pkg-config || want pkg-config
if have cc; then
    header stdio.h || need libc6-dev
else
    need gcc
    need libc6-dev
fi
have c++ || want g++
if ! have cc || ! header zlib.h; then want zlib1g-dev; fi
if ! have cc || ! header oneapi/dnnl/dnnl.h; then want oneDNN; fi
[ -e "${GTRAIN_DATA:-/usr/share/datasets/fashion-mnist}/train-images-idx3-ubyte.gz" ] || want dataset-fashion-mnist

# tests/python runs with the first Python that has both, the system's or another.
python_has() { python3 -c "import $1" >/dev/null 2>&1 || /usr/bin/python3 -c "import $1" >/dev/null 2>&1; }
have python3 || want python3
python_has numpy || want python3-numpy
python_has pytest || want python3-pytest

[ -z "$packages$optional" ] && exit 0

if ! have apt-get; then
    [ -z "$packages" ] || { echo "setup: missing:$packages. Install them with this system's package manager." >&2; exit 1; }
    echo "setup: without$optional (no apt-get here); the build goes on without" >&2
    exit 0
fi

sudo=""
if [ "$(id -u)" -ne 0 ]; then
    if have sudo; then
        sudo="sudo"
    else
        echo "setup: run as root: apt-get install$packages $(echo "$optional" | sed 's/oneDNN/libdnnl-dev/')" >&2
        [ -z "$packages" ] && exit 0
        exit 1
    fi
fi

known() { apt-cache show "$1" >/dev/null 2>&1; }
lists_updated=no
update_lists() {
    [ "$lists_updated" = no ] || return 0
    lists_updated=yes
    echo "setup: reading apt's package lists"
    $sudo apt-get update -qq || echo "setup: apt-get update failed; going on with the lists at hand" >&2
}
# A fresh system has no lists yet.
known gcc || update_lists

install=""
for package in $packages; do install="$install $package"; done
for package in $optional; do
    if [ "$package" = oneDNN ]; then
        # Debian and Ubuntu have had it under both names.
        package=libdnnl-dev
        known "$package" || package=libonednn-dev
    fi
    if known "$package"; then
        install="$install $package"
    else
        echo "setup: this system has no package $package; going on without it"
    fi
done
[ -z "$install" ] && exit 0

echo "setup: installing$install"
run_install() {
    # shellcheck disable=SC2086 # a list of words
    $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $install >/dev/null
}
if ! run_install; then
    update_lists
    if ! run_install; then
        echo "setup: that failed. Run by hand: ${sudo:+sudo }apt-get update && ${sudo:+sudo }apt-get install$install" >&2
        [ -z "$packages" ] && { echo "setup: the build goes on without" >&2; exit 0; }
        exit 1
    fi
fi
