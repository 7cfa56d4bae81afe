#!/usr/bin/env bash
# As root: runs `make demo` and these tests (without arguments: `make test`) as a new user who has Python only as `python3`, and
# removes the user.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ "$(id -u)" != 0 ]; then echo "only root can make a user: skipped"; exit; fi

user=retarget-$$
home=$(mktemp -d)
useradd --home-dir "$home" --no-create-home --shell /bin/bash "$user"
remove() { userdel "$user" && rm -rf "$home"; }  # userdel fails if the user still has a process
trap remove EXIT
chmod 755 "$home"

# Certificates come from the system. The network may need a proxy, or another package index.
variables=(HOME="$home" USER="$user" LANG=C.UTF-8 PATH="$home/bin" TMPDIR="$home/tmp" XDG_RUNTIME_DIR="$home/run" PYENV_ROOT="$home/pyenv")
for name in {http,https,no,all}_proxy {HTTP,HTTPS,NO,ALL}_PROXY PIP_{INDEX_URL,EXTRA_INDEX_URL,FIND_LINKS} UV_{DEFAULT_INDEX,INDEX,INDEX_URL,EXTRA_INDEX_URL,FIND_LINKS}; do
    if [ -n "${!name:-}" ]; then variables+=("$name=${!name}"); fi
done
as_user() { setpriv --reuid "$user" --regid "$user" --init-groups env -i "${variables[@]}" "$@"; }
usable() { as_user "$1" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

mkdir "$home/bin" "$home/tmp"
mkdir -m 700 "$home/run"  # a login has one; without it Podman leaves its folders in the temp folder
find /bin/ /usr/bin/ -mindepth 1 -maxdepth 1 ! -name 'python*' ! -name 'pip*' ! -name 'uv*' -exec ln -sf -t "$home/bin" {} +
chown -R "$user:" "$home"
mkdir -m 700 "$home/pyenv"  # of root, as where `su` kept the variables of root
python=$(python3 -c 'import os, sys; print(os.path.realpath(sys.executable))')
if ! usable "$python"; then python=/usr/bin/python3; fi
if ! usable "$python"; then  # such as one in the home of root
    cp -r "$(python3 -c 'import sys; print(sys.base_prefix)')" "$home/python"
    python=$home/python/bin/python3
fi
ln -s "$python" "$home/bin/python3"

git clone --quiet . "$home/clone"
chown -R "$user:" "$home/clone"
cd "$home/clone"
echo "as $user, with $("$python" --version) as python3:"
as_user make demo
as_user .venv/bin/retarget server stop
if [ $# -gt 0 ]; then as_user .venv/bin/pytest -q -n 4 --dist worksteal -m "not everything" "$@"; else as_user make test; fi
remaining=$(find "$home/tmp" /tmp -mindepth 1 -maxdepth 1 -user "$user" ! -path "$home")
if [ -n "$remaining" ]; then echo "left in the temp folder:"; echo "$remaining"; exit 1; fi
