#!/bin/sh
# Any CI system: a step before the tests. For the service, every program on this machine then belongs to vm-1.
# Start your handler with the URL http://127.0.0.1:8169. After its first request, run
# `forewarn maintenance schedule --vm vm-1`. Time stands still until `forewarn clock advance 15m`.
set -eu

pip install 'forewarn[server]'
forewarn serve --clock virtual --database-url sqlite:// > forewarn.log 2>&1 &
timeout 60 sh -c 'until forewarn vm list 2> /dev/null; do sleep 0.2; done' || { cat forewarn.log; exit 1; }
