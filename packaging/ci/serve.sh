#!/bin/sh
# Any CI system: a step before the tests. What runs on this machine then is vm-1 to the service.
# Start your handler at http://127.0.0.1:8169. Once it has asked, say `forewarn maintenance schedule --vm vm-1`.
# Time stands still until `forewarn clock advance 15m`.
set -eu

pip install 'forewarn[server]'
forewarn serve --clock virtual --database-url sqlite:// > forewarn.log 2>&1 &
timeout 60 sh -c 'until forewarn vm list 2> /dev/null; do sleep 0.2; done' || { cat forewarn.log; exit 1; }
