#!/bin/sh -e
# Boots a VM, as its systemd would: starts the counter, and the agent where there is one. What runs is left alone.

cd "$(dirname "$0")"
vm=$1
mkdir -p "$vm/disk" "$vm/local" "$vm/run"
./on "$vm" ../counter.sh start
if [ -e "$vm/agent.toml" ]; then
  ./on "$vm" start-stop-daemon --start --oknodo --quiet --background --make-pidfile --pidfile "$PWD/$vm/run/agent.pid" \
    --chdir "$PWD/$vm" --startas "$(command -v forewarn)" -- agent run
fi
