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
    environments mlflow-new mlflow-old skinny-new skinny-old
fi
