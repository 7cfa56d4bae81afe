#!/usr/bin/env bash
# Installs what the tests need and the machine lacks, where it can: as root, on Debian.
set -euo pipefail

have_postgres() { command -v initdb >/dev/null || compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null; }

if have_postgres; then exit 0; fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing PostgreSQL for the store tests"
    export DEBIAN_FRONTEND=noninteractive
    # Only the programs: no cluster is made, no server is started.
    mkdir -p /etc/postgresql-common
    [ -e /etc/postgresql-common/createcluster.conf ] || echo 'create_main_cluster = false' > /etc/postgresql-common/createcluster.conf
    apt-get install -qq -y postgresql >/dev/null || { apt-get update -qq && apt-get install -qq -y postgresql >/dev/null; } || true
fi
have_postgres || echo "PostgreSQL is not installed: the store's tests run on SQLite alone"
