#!/usr/bin/env bash
# Trains a small model on the local target and shows what came out. `make demo` runs it.
set -euo pipefail
cd "$(dirname "$0")"

bold() { printf '\n\033[1m%s\033[0m\n' "$*"; }
if [ ! -t 1 ]; then bold() { printf '\n== %s\n' "$*"; }; fi

job="iris-$(date +%Y%m%d-%H%M%S)"
downloads=$(mktemp -d)
trap 'rm -rf "$downloads"' EXIT

bold "1. Train on the local target; its environment is built the first time, and found the next"
echo "\$ retarget run --env requirements.txt --name $job train.py"
(cd iris && retarget run --env requirements.txt --name "$job" train.py)

bold "2. The job: where it stands and why, what it ran, its history"
echo "\$ retarget job show $job"
retarget job show "$job"

bold "3. What it left"
echo "\$ retarget job outputs $job"
retarget job outputs "$job"

bold "4. Its metrics, fetched"
echo "\$ retarget job outputs $job outputs/metrics.json --download $downloads"
retarget job outputs "$job" outputs/metrics.json --download "$downloads"
echo "\$ cat $downloads/outputs/metrics.json"
cat "$downloads/outputs/metrics.json"

bold "Next"
cat <<NEXT
  source .venv/bin/activate                          the retarget command, in this shell
  cd examples/iris
  retarget run -e requirements.txt train.py -- --regularization 10
  retarget run -d -e requirements.txt train.py       do not wait; it prints the job's name
  retarget job list
  retarget job rerun $job
  retarget --help                                    and docs/tutorial.md

A small server runs in the background and keeps your jobs; end it with
  retarget server stop
NEXT
