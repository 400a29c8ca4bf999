#!/bin/sh
# Links with the C compiler. `cargo xtask` sets XTASK_INSTALL: a system without a compiler gets one first.
# rustc shows what a linker prints only if it fails.
set -e
if ! command -v cc >/dev/null; then
    if [ -z "$XTASK_INSTALL" ] || ! command -v apt-get >/dev/null; then
        echo "the system has no C compiler: run \`cargo xtask setup\` on Debian, or install gcc" >&2
        exit 1
    fi
    sudo=
    [ "$(id -u)" = 0 ] || sudo=sudo
    # cargo links several programs at once; the first one installs.
    exec 9>"${TMPDIR:-/tmp}/chancery-linker.lock"
    flock 9
    if ! command -v cc >/dev/null; then
        {
            $sudo env DEBIAN_FRONTEND=noninteractive apt-get -qq update
            $sudo env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends g++
        } >&2 </dev/null
    fi
fi
exec cc "$@"
