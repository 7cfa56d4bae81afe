#!/usr/bin/env bash
# Installs uv into .venv with pip, which trusts the certificates of the system, as our uv does.
set -euo pipefail
cd "$(dirname "$0")/.."

# pip does so by itself since 24.2; Debian 12 has 23.0. What the user has set comes first.
configured=${REQUESTS_CA_BUNDLE:-}${CURL_CA_BUNDLE:-}$(.venv/bin/pip config list | grep 'cert=' || true)
for bundle in /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt /etc/ssl/ca-bundle.pem; do
    if [ -z "$configured" ] && [ -r $bundle ]; then export PIP_CERT=$bundle configured=yes; fi
done
.venv/bin/pip install --quiet --disable-pip-version-check uv
