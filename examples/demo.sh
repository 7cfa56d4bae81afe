#!/usr/bin/env bash
# Trains a small model on the local target and shows the results. `make demo` runs it.
set -euo pipefail
cd "$(dirname "$0")"

bold() { printf '\n\033[1m%s\033[0m\n' "$*"; }
if [ ! -t 1 ]; then bold() { printf '\n== %s\n' "$*"; }; fi

job="iris-$(date +%Y%m%d-%H%M%S)"

bold "1. Train on the local target. The environment is built the first time and reused later"
echo "\$ retarget run --environment requirements.txt --name $job train.py"
(cd iris && retarget run --environment requirements.txt --name "$job" train.py)

bold "2. Show the job: its state and reason, its command, its history"
echo "\$ retarget job show $job"
retarget job show "$job"

bold "3. List its output files"
echo "\$ retarget job outputs $job"
retarget job outputs "$job"

bold "4. Train with more regularization, and compare the two jobs"
echo "\$ retarget run --environment requirements.txt --name $job-2 train.py -- --regularization 10"
(cd iris && retarget run --environment requirements.txt --name "$job-2" train.py -- --regularization 10)
echo "\$ retarget job compare $job $job-2"
retarget job compare "$job" "$job-2"

bold "5. Register its model. The version records the job, the code and the metrics it came from"
echo "\$ retarget model register iris --job $job --path outputs/model.pkl"
retarget model register iris --job "$job" --path outputs/model.pkl
echo "\$ retarget model show iris latest"
retarget model show iris latest

bold "Next"
cat <<NEXT
  source .venv/bin/activate                          use the retarget command in this shell
  cd examples/iris
  retarget run -e requirements.txt train.py -- --regularization 0.1
  retarget run -d -e requirements.txt train.py       print the job's name and do not wait
  retarget job list
  retarget job rerun $job
  retarget --help                                    see also docs/tutorial.md

A small server runs in the background and stores your jobs. To stop it:
  retarget server stop
NEXT
