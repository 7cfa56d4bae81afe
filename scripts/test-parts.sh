#!/usr/bin/env bash
# Installs what the tests need and the machine lacks, as far as possible; with arguments, only the named environments.
# With EVERYTHING=yes, also what only `make everything` needs.
set -euo pipefail
cd "$(dirname "$0")/.."

SSHD=(sshd ssh ip) DOCKER=(dockerd docker iptables ip) PODMAN=(podman runc conmon iptables ip)
CLIENTS=(skinny-new) CLIENTS_SIZE="100 MB"
if [ -n "${EVERYTHING:-}" ]; then CLIENTS+=(skinny-old mlflow-new mlflow-old) CLIENTS_SIZE="1 GB"; fi

announce() {  # Say what will be installed before anything is.
    local packages=() folders=() name
    if can_install; then
        have_postgres || packages+=(PostgreSQL)
        all_installed "${SSHD[@]}" || packages+=("the OpenSSH server")
        all_installed "${DOCKER[@]}" || packages+=(Docker)
        all_installed "${PODMAN[@]}" || packages+=(Podman)
        [ -e .parts/image/python.tar ] || folders+=(.parts/image)
    fi
    for name in "${CLIENTS[@]}"; do installed "$name" || folders+=(".parts/$name"); done
    if [ ${#packages[@]} -gt 0 ]; then echo "The tests need these packages, which apt-get will install now. No service is started: $(listed "${packages[@]}")"; fi
    if [ ${#folders[@]} -gt 0 ]; then echo "The tests also need these folders, which will be created now (about $CLIENTS_SIZE in all; \`make clean\` removes them): $(listed "${folders[@]}")"; fi
}

listed() { local text; printf -v text '%s, ' "$@"; echo "${text%, }"; }

can_install() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }  # as root, on Debian

installed() { cmp -s "requirements/$1.txt" ".parts/$1/ready"; }

have_postgres() { command -v initdb >/dev/null || compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null; }

postgres() {
    if have_postgres; then return; fi
    if can_install; then
        echo "installing PostgreSQL for the store tests"
        export DEBIAN_FRONTEND=noninteractive
        # Install only the programs: create no cluster and start no server.
        mkdir -p /etc/postgresql-common
        [ -e /etc/postgresql-common/createcluster.conf ] || echo 'create_main_cluster = false' > /etc/postgresql-common/createcluster.conf
        apt-get install -qq -y postgresql >/dev/null || { apt-get update -qq && apt-get install -qq -y postgresql >/dev/null; } || true
    fi
    have_postgres || echo "PostgreSQL is not installed: the store tests run on SQLite only"
}

all_installed() { local name; for name in "$@"; do [ -n "$(PATH=$PATH:/usr/sbin:/sbin type -P "$name")" ] || return 1; done; }

programs() {  # NAME TESTS PACKAGE… -- PROGRAM…
    local name=$1 tests=$2 packages=()
    shift 2
    while [ "$1" != -- ]; do packages+=("$1"); shift; done
    shift
    if all_installed "$@"; then return; fi
    if can_install; then
        echo "installing $name for the tests"
        without_services apt_install "${packages[@]}" || true
    fi
    all_installed "$@" || echo "$name is not installed: $tests are skipped"
}

apt_install() {
    export DEBIAN_FRONTEND=noninteractive
    apt-get install -qq -y --no-install-recommends "$@" >/dev/null || { apt-get update -qq && apt-get install -qq -y --no-install-recommends "$@" >/dev/null; }
}

without_services() {  # Run a command and let no package start a daemon meanwhile.
    local policy=/usr/sbin/policy-rc.d created=
    if [ ! -e $policy ]; then
        created=yes
        printf '#!/bin/sh\nexit 101\n' > $policy
        chmod 755 $policy
    fi
    local code=0
    "$@" || code=$?
    if [ -n "$created" ]; then rm -f $policy; fi
    return $code
}

docker_client() { if apt-cache show docker-cli >/dev/null 2>&1; then echo docker-cli; fi; }  # a separate package since Debian 13

image() {  # an image with Python and a shell, for the engines
    if [ -e .parts/image/python.tar ]; then return; fi
    if [ "$(id -u)" = 0 ] && all_installed apt-get dpkg-deb; then
        echo "building .parts/image for the tests"
        scripts/python-image.sh || true
    fi
    [ -e .parts/image/python.tar ] || echo ".parts/image could not be built: the container tests are skipped"
}

# uv with the certificates of this machine and the user's settings of pip
uv=(.venv/bin/python -I src/retarget/runner/uv_settings.py .venv/bin/uv)

environments() {  # from requirements/NAME.txt: MLflow clients, current and a year old; a fuzzer
    local name requirements folder
    for name in "$@"; do
        requirements=requirements/$name.txt folder=.parts/$name
        if installed "$name"; then continue; fi
        echo "installing $folder for the tests"
        rm -rf "$folder"
        if "${uv[@]}" venv --quiet --python .venv/bin/python "$folder" &&
            "${uv[@]}" pip install --quiet --python "$folder" --require-hashes -r "$requirements"; then
            cp "$requirements" "$folder/ready"  # last, so that an interrupted installation is repeated
        else
            echo "$folder is not installed: the tests that need it are skipped"
        fi
    done
}

if [ $# -gt 0 ]; then
    environments "$@"
else
    announce
    postgres
    programs "The OpenSSH server" "the tests on SSH hosts" openssh-server openssh-client iproute2 -- "${SSHD[@]}"
    programs Docker "the tests on Docker" docker.io $(docker_client) tini iptables iproute2 -- "${DOCKER[@]}"
    programs Podman "the tests on Podman" podman runc iptables netavark aardvark-dns catatonit iproute2 -- "${PODMAN[@]}"
    image
    environments "${CLIENTS[@]}"
fi
