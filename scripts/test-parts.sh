#!/usr/bin/env bash
# Installs what the tests need and the machine lacks, where it can; or only the named environments.
set -euo pipefail
cd "$(dirname "$0")/.."

have_postgres() { command -v initdb >/dev/null || compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null; }

postgres() {  # as root, on Debian
    if have_postgres; then return; fi
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "installing PostgreSQL for the store tests"
        export DEBIAN_FRONTEND=noninteractive
        # Only the programs: no cluster is made, no server is started.
        mkdir -p /etc/postgresql-common
        [ -e /etc/postgresql-common/createcluster.conf ] || echo 'create_main_cluster = false' > /etc/postgresql-common/createcluster.conf
        apt-get install -qq -y postgresql >/dev/null || { apt-get update -qq && apt-get install -qq -y postgresql >/dev/null; } || true
    fi
    have_postgres || echo "PostgreSQL is not installed: the store's tests run on SQLite alone"
}

have() { local name; for name in "$@"; do [ -n "$(PATH=$PATH:/usr/sbin:/sbin type -P "$name")" ] || return 1; done; }

programs() {  # WHAT FOR PACKAGE… -- PROGRAM…: as root, on Debian
    local what=$1 for=$2 packages=()
    shift 2
    while [ "$1" != -- ]; do packages+=("$1"); shift; done
    shift
    if have "$@"; then return; fi
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "installing $what for the tests"
        without_services apt_install "${packages[@]}" || true
    fi
    have "$@" || echo "$what is not installed: $for are skipped"
}

apt_install() {
    export DEBIAN_FRONTEND=noninteractive
    apt-get install -qq -y --no-install-recommends "$@" >/dev/null || { apt-get update -qq && apt-get install -qq -y --no-install-recommends "$@" >/dev/null; }
}

without_services() {  # Only the programs: no daemon is started, now or by what a package does.
    local policy=/usr/sbin/policy-rc.d ours=
    if [ ! -e $policy ]; then
        ours=yes
        printf '#!/bin/sh\nexit 101\n' > $policy
        chmod 755 $policy
    fi
    local code=0
    "$@" || code=$?
    if [ -n "$ours" ]; then rm -f $policy; fi
    return $code
}

client() { if apt-cache show docker-cli >/dev/null 2>&1; then echo docker-cli; fi; }  # apart from Debian 13 on

image() {  # with Python and a shell, for the engines
    if [ -e .parts/image/python.tar ]; then return; fi
    if [ "$(id -u)" = 0 ] && have apt-get dpkg-deb; then
        echo "making .parts/image for the tests"
        scripts/python-image.sh || true
    fi
    [ -e .parts/image/python.tar ] || echo ".parts/image is not made: the tests of containers are skipped"
}

environments() {  # of requirements/NAME.txt: MLflow's clients, new and a year old; a fuzzer
    local name wanted place
    for name in "$@"; do
        wanted=requirements/$name.txt place=.parts/$name
        if cmp -s "$wanted" "$place/ready"; then continue; fi
        echo "installing $place for the tests"
        rm -rf "$place"
        if .venv/bin/uv venv --quiet --python .venv/bin/python "$place" &&
            .venv/bin/uv pip install --quiet --python "$place" --require-hashes -r "$wanted"; then
            cp "$wanted" "$place/ready"  # last: what broke off is made again
        else
            echo "$place is not installed: the tests that need it are skipped"
        fi
    done
}

if [ $# -gt 0 ]; then
    environments "$@"
else
    postgres
    programs "OpenSSH's server" "the tests on hosts with SSH" openssh-server openssh-client iproute2 -- sshd ssh ip
    programs Docker "the tests on Docker" docker.io $(client) tini iptables iproute2 -- dockerd docker iptables ip
    programs Podman "the tests on Podman" podman runc iptables netavark aardvark-dns catatonit iproute2 -- podman runc conmon iptables ip
    image
    environments mlflow-new mlflow-old skinny-new skinny-old
fi
