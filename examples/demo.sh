#!/usr/bin/env bash
# Trains a small model on the local target and shows what came out. `make demo` runs it.
set -euo pipefail
cd "$(dirname "$0")"

bold() { printf '\n\033[1m%s\033[0m\n' "$*"; }
if [ ! -t 1 ]; then bold() { printf '\n== %s\n' "$*"; }; fi

job="iris-$(date +%Y%m%d-%H%M%S)"

bold "1. Train on the local target; its environment is built the first time, and found the next"
echo "\$ retarget run --env requirements.txt --name $job train.py"
(cd iris && retarget run --env requirements.txt --name "$job" train.py)

bold "2. The job: where it stands and why, what it ran, its history"
echo "\$ retarget job show $job"
retarget job show "$job"

bold "3. What it left"
echo "\$ retarget job outputs $job"
retarget job outputs "$job"

bold "4. The same with more regularization, and the two side by side"
echo "\$ retarget run --env requirements.txt --name $job-2 train.py -- --regularization 10"
(cd iris && retarget run --env requirements.txt --name "$job-2" train.py -- --regularization 10)
echo "\$ retarget job compare $job $job-2"
retarget job compare "$job" "$job-2"

bold "5. Its model, registered: it knows the job, the code and the metrics it came from"
echo "\$ retarget model register iris --job $job --path outputs/model.pkl"
retarget model register iris --job "$job" --path outputs/model.pkl
echo "\$ retarget model show iris latest"
retarget model show iris latest

bold "Next"
cat <<NEXT
  source .venv/bin/activate                          the retarget command, in this shell
  cd examples/iris
  retarget run -e requirements.txt train.py -- --regularization 0.1
  retarget run -d -e requirements.txt train.py       do not wait; it prints the job's name
  retarget job list
  retarget job rerun $job
  retarget --help                                    and docs/tutorial.md

A small server runs in the background and keeps your jobs; end it with
  retarget server stop
NEXT
